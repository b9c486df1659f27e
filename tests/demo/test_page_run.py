"""`kernel-supervisor demo --web`: the page beside a real tree, and the whole story followed by a browser (group 29)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser

from asr_demo import live_page
from asr_demo.live import main
from asr_demo.variants import variant_name
from kernel.config import Config
from kernel.runtime import embedded_redis_url
from supervisor.control_client import ControlClient
from tests.demo.aftermath import Aftermath
from tests.demo.command import LIMIT_S, living_below
from tests.demo.page_browser import Tab, chromium
from tests.demo.page_process import PageProcess
from tests.demo.page_reader import Reading, get, opened
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(240)


class Run:
    """The command while it runs, with `--web 0`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._told = folder / "stderr"
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        options = ("--web", "0", "--json", "--data-dir", str(self.data), *arguments)
        with self._told.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "supervisor", "demo", *options],
                cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=stderr,
            )  # fmt: skip

    @property
    def told(self) -> str:
        return self._told.read_text()

    def tells(self, pattern: str) -> re.Match[str]:
        def look() -> re.Match[str] | None:
            assert self.process.poll() is None or re.search(pattern, self.told), self.told
            return re.search(pattern, self.told)

        return wait_until(look, f"the command says {pattern}", LIMIT_S)  # type: ignore[return-value]

    @property
    def port(self) -> int:
        return int(self.tells(r"page: http://127\.0\.0\.1:(\d+)/")[1])

    def web_pid(self) -> int | None:
        with ControlClient(str(self.data)) as client:
            children: list[dict[str, Any]] = client.request("status")["children"]
        (web,) = [child for child in children if child["role"] == "web"]
        assert web["url"] == f"http://127.0.0.1:{self.port}"
        return web["pid"] if web["state"] == "RUNNING" else None

    def ended(self) -> dict[str, Any]:
        """The JSON object of a run that has ended well, and left no process."""
        output, _ = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, self.told
        wait_until(lambda: not living_below(self.folder), "every process of the demo has ended")
        report: dict[str, Any] = json.loads(output.splitlines()[-1])
        return report


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Run]:
    run = Run(folder, *arguments)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate()
        wait_until(lambda: not living_below(folder), "the tree has ended behind its driver")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


STORY = (
    r"the show 'Architecture Night' is live, and its observer looks every second",
    r"4 have subscribed",
    r"sub-001 wait_for_recording waits for signal recording_ready/architecture-night",
    r"the show has ended, its recording is there",
    r"the observer has seen the recording and begun the fan-out",
    r"sub-001 wait_for_recording entered by worker-\d .*woken by signal",
    r"sub-001 preprocess +entered by worker-\d",
    r"sub-001 transcribe_audio +is task asr-",
    r"sub-001 transcribe_audio +waits outside, looks again at ",
    r"sub-001 transcribe_audio +completed",
    r"sub-001 compose_content +entered by worker-\d",
    r"sub-001 finalize +completed",
    r"sub-001 +workflow completed",
    r"the page stays at http://127\.0\.0\.1:\d+ until Ctrl-C",
)


@pytest.mark.fault
@pytest.mark.needs("chromium")
@pytest.mark.req("e2e-story", "e2e-sse", "e2e-permit", "dc-demo-live", "dc-demo-fake-asr", "sse-http")
def test_the_whole_story_followed_by_a_reader_and_a_browser(browser: Browser, tmp_path: Path) -> None:
    """The web process is killed; a reader goes on at another one; rows and timeline say what happened."""
    with running(tmp_path, "--subscribers", "4", "--stay") as run, browser.new_context() as context:
        run.tells("4 have subscribed")
        tab = Tab(context, f"http://127.0.0.1:{run.port}", "sub-002")
        config = Config(data_dir=str(run.data), redis_url=embedded_redis_url(run.data))
        wait_until(lambda: get(run.port, "/live/sub-003")[0] == 200, "the third has subscribed")
        with closing(PageProcess(config, "subscriptions")) as other:
            with opened(other.port, "/stream/sub-003") as before:
                tab.becomes("live")
                killed = wait_until(run.web_pid, "the web process runs")
                before_kill = len(tab.streams())
                os.kill(killed, signal.SIGKILL)
                tab.reconnects(before_kill)
                wait_until(lambda: run.web_pid() not in (None, killed), "the supervisor has started another")
                seen = before.frames(3)
            with Reading(run.port, "/stream/sub-003") as after:
                *frames, end = [event for event in after.events() if event.name in ("frame", "terminal")]
        # Had it ended meanwhile, there is the result and not the way to it once more (sse-finished-direct).
        assert frames == [] or frames[:3] == seen
        assert str(seen[0].id).endswith("-0")
        tab.becomes("done")
        shown = tab.text

        run.tells(STORY[-1])
        assert get(run.port, "/")[1].count("<td>completed</td>") == 4
        run.process.send_signal(signal.SIGINT)
        report = run.ended()

    assert (report["status"], report["workflows"], report["completed"], report["lost"]) == ("completed", 6, 6, 0)
    assert (report["asr_submits"], report["deliveries"], report["signals"]) == (4, 4, 4)
    places = [found.start() if (found := re.search(line, run.told)) else -1 for line in STORY]
    assert -1 not in places, [line for line, place in zip(STORY, places, strict=True) if place < 0]
    assert places == sorted(places), run.told
    assert re.search(r"an operator's view of sub-\d+: transcribe_audio waiting \(timer\)", run.told)
    with closing(Aftermath(run.data)) as left:
        summaries = {name: left.subscription(name).fields["summary"] for name in left.subscriptions()}
        workflows = [left.summary(name) for name in summaries]
        polls = [{entry.pid for entry in left.entries(one, "transcribe_audio")} for one in workflows]
        waits = [one.steps[one.step_index("transcribe_audio")].traffic_wait_ms for one in workflows]
    assert len(set().union(*polls)) == 2, "speech was polled by different workers"
    assert max(waits) > 0, "some had to wait for the permit of the speech service"
    assert end.data["data"]["result"]["summary"] == summaries["sub-003"]
    assert shown == summaries["sub-002"]


@pytest.mark.fault
@pytest.mark.needs("chromium")
@pytest.mark.req("e2e-compose", "sse-reset", "dc-demo-kill")
def test_a_worker_killed_in_compose_is_seen_as_a_restart_and_changes_nothing(
    browser: Browser, tmp_path: Path, clip: Path
) -> None:
    with (
        running(tmp_path, "--audio", str(clip), "--kill-worker-at", "compose_content") as run,
        browser.new_context() as context,
    ):
        site = f"http://127.0.0.1:{run.port}"
        run.tells("preprocess +entered")
        tab = Tab(context, site)
        tab.becomes("done")
        report = run.ended()

        assert len(report["killed"]) == 1
        assert tab.note == "restarted (1): the text begins again"
        assert tab.text == report["summary"]
        assert (tab.words, tab.errors, len(tab.streams())) == ("completed", [], 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--stay"], "error: --stay: needs --web\n"),
        (["--web", "65536"], "65536 is not in the range 0<=x<=65535"),
        (["--web", "8o"], "'8o' is no whole number"),
        (["--web", "8_321"], "'8_321' is no whole number"),
    ],
)
def test_a_wrong_option_is_exit_2(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr


def test_a_port_in_use_is_one_line_that_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_page, "TRIES", 2)
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(main, ["--web", str(port)])

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr + capfd.readouterr().err == f"error: --web {port}: Address already in use\n"
    assert list(tmp_path.iterdir()) == [], "nothing was started for it"


def test_without_the_extra_one_line_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = live_page.find_spec
    monkeypatch.setattr(live_page, "find_spec", lambda name: None if name == "sse_starlette" else installed(name))

    done = CliRunner().invoke(main, ["--web"])

    assert (done.exit_code, done.stdout) == (78, "")
    assert done.stderr == "error: --web needs the extra `web`: pip install 'workflow-kernel[web]'\n"


def test_what_differs_between_runs_is_in_the_applications_name() -> None:
    from asr_demo import app, show_app

    for module, role in ((app, "notes"), (show_app, "subscriptions")):
        for step in (None, "compose_content"):
            name = variant_name(step, 8321)
            web = getattr(module, name).companions[-1]
            assert (web.name, web.role, web.port) == ("web", f"asr_demo.page.companion:{role}", 8321)
            plain = getattr(module, variant_name(step, None))
            assert [companion.name for companion in plain.companions] == ["asr"]
        for name in ("app_page_", "app_page_x", "app_page_123456", "held_at_nothing", "held_at_", "other"):
            assert not hasattr(module, name)
        with pytest.raises(Exception, match="port 70000 is not"):
            getattr(module, variant_name(None, 70_000))
