"""The page in a real browser: it survives what happens to connections and processes, and ends on the note's result."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser

from tests.demo.page_browser import Tab, chromium
from tests.demo.page_process import PageProcess
from tests.demo.page_stage import Site, Stage
from tests.support.proxy import Proxy
from tests.support.redis_servers import RedisTarget
from tests.support.wait import stays, wait_until

pytestmark = pytest.mark.needs("chromium")

Open = Callable[..., Tab]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def web(stage: Stage) -> Iterator[PageProcess]:
    web = PageProcess(stage.config)
    try:
        yield web
    finally:
        web.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Open]:
    """Opens tabs of one visitor; each must end without an alert and without an error in its script."""
    opened: list[Tab] = []
    with ExitStack() as stack:

        def open_tab(where: Site | PageProcess | Proxy, object_id: str = "note-1", **options: bool) -> Tab:
            context = browser.new_context(**options)  # type: ignore[arg-type]
            stack.callback(context.close)
            opened.append(Tab(context, f"http://127.0.0.1:{where.port}", object_id))
            return opened[-1]

        yield open_tab
        assert [tab.alerts + tab.errors for tab in opened] == [[]] * len(opened)


@pytest.mark.req("sse-http", "sse-reconnect")
def test_a_reload_in_mid_stream_shows_what_there_is_and_goes_on(stage: Stage, site: Site, tab: Open) -> None:
    stage.start()
    page = tab(site)
    stage.write("The first. ", "The second. ")
    page.shows("The first. The second. ")
    assert page.state == "live"

    page.page.reload()
    page.shows("The first. The second. ")
    stage.write("The third.")
    page.shows("The first. The second. The third.")
    stage.finish("The first, the second, and the third.")

    page.becomes("done")
    page.shows("The first, the second, and the third.")
    assert page.words == "completed"
    assert page.note == ""


@pytest.mark.req("sse-list", "sse-http", "sse-disconnect")
def test_two_tabs_see_the_same_and_closing_one_disturbs_nobody(stage: Stage, site: Site, tab: Open) -> None:
    stage.start()
    one, other = tab(site), tab(site)
    stage.write("Shown to both. ")
    one.shows("Shown to both. ")
    other.shows("Shown to both. ")

    one.page.close()
    stage.write("And to one.")
    other.shows("Shown to both. And to one.")
    stage.finish("Shown to both. And to one.")

    other.becomes("done")
    assert stage.note().status == "completed"


@pytest.mark.req("sse-http")
def test_after_the_end_the_page_asks_for_nothing_more(stage: Stage, web: PageProcess, tab: Open) -> None:
    stage.start()
    page = tab(web)
    stage.write("All of it.")
    page.shows("All of it.")
    stage.finish("All of it.")
    page.becomes("done")

    asked = len(page.requests)
    web.kill()
    stays(lambda: len(page.requests) == asked and page.state == "done", "it rests", 1.5, every=0.2)
    assert len(page.streams()) == 1


def test_the_steps_are_shown_as_they_have_ended(stage: Stage, site: Site, tab: Open) -> None:
    """The last pulse before the end still said "running"."""
    stage.start()
    page = tab(site)
    wait_until(lambda: page.steps == ["compose_content: running"], "a pulse has told the steps")

    stage.finish("All of it.")

    page.becomes("done")
    assert page.steps == ["compose_content: completed"]


@pytest.mark.parametrize("late", [False, True])
def test_a_tab_at_a_failed_round_follows_the_one_that_its_user_starts(
    stage: Stage, site: Site, tab: Open, late: bool
) -> None:
    workflow_id = stage.start()
    page = tab(site)
    stage.write("Of the first round. ")
    page.shows("Of the first round. ")
    for _ in range(4):
        stage.stumble()
    wait_until(lambda: stage.instance(workflow_id).status == "failed", "the first round has failed")
    wait_until(lambda: page.words == "failed", "the page says so")
    assert page.steps == ["compose_content: failed"]
    if late:
        page.page.reload()
        assert page.words == "failed"

    stage.retry()
    page.becomes("live")
    stage.write("Of the second. ")
    page.shows("Of the second. ")
    assert page.note == "the next round has begun (f2): the text begins again"
    stage.finish("Of the second.")

    page.becomes("done")
    page.shows("Of the second.")
    assert (page.words, page.steps) == ("completed", ["compose_content: completed"])


@pytest.mark.fault
@pytest.mark.req("e2e-sse", "sse-reconnect")
def test_a_killed_web_process_is_reconnected_to_without_a_gap_or_a_repeat(
    stage: Stage, web: PageProcess, tab: Open
) -> None:
    stage.start()
    page = tab(web)
    stage.write("Before. ")
    page.shows("Before. ")

    web.kill()
    page.becomes("reconnecting")
    assert page.words.startswith("reconnecting in ")
    stage.write("Meanwhile. ")
    web.start()
    page.shows("Before. Meanwhile. ")
    stage.write("After.")
    page.shows("Before. Meanwhile. After.")
    assert page.state == "live"
    assert page.note == ""

    stage.finish("Before, meanwhile, after.")
    page.becomes("done")
    page.shows("Before, meanwhile, after.")


@pytest.mark.fault
def test_a_frozen_web_process_is_noticed_by_its_silence(stage: Stage, web: PageProcess, tab: Open) -> None:
    stage.start()
    page = tab(web)
    stage.write("Before. ")
    page.shows("Before. ")

    web.signal(signal.SIGSTOP)
    page.becomes("reconnecting")
    stage.write("Meanwhile.")
    web.signal(signal.SIGCONT)

    page.shows("Before. Meanwhile.")
    page.becomes("live")
    stage.finish("Before. Meanwhile.")
    page.becomes("done")
    assert page.note == ""


def test_503_for_a_while_is_survived(stage: Stage, web: PageProcess, tab: Open) -> None:
    """A browser's own EventSource would be closed for ever by the first of them."""
    stage.start()
    page = tab(web)
    stage.write("Before. ")
    page.shows("Before. ")

    web.kill()
    with web.refusing() as refused:
        wait_until(lambda: page.state and len(refused) >= 2, "the page has been refused twice")
    web.start()

    page.shows("Before. ")
    stage.write("After.")
    page.shows("Before. After.")
    page.becomes("live")
    stage.finish("Before. After.")
    page.becomes("done")
    assert page.note == ""


def test_a_cut_and_then_dead_network_is_survived(stage: Stage, site: Site, tab: Open) -> None:
    stage.start()
    with Proxy(site.port) as network:
        page = tab(network)
        stage.write("Before. ")
        page.shows("Before. ")

        network.cut()
        stage.write("Cut. ")
        page.shows("Before. Cut. ")
        network.blackhole()
        stage.write("Dead. ")
        page.becomes("reconnecting")
        network.blackhole(False)
        network.cut()
        page.shows("Before. Cut. Dead. ")

        stage.finish("Before. Cut. Dead.")
        page.becomes("done")
        assert page.note == ""


@pytest.mark.fault
@pytest.mark.req("sse-loss-harmless", "sse-terminal-retry")
def test_when_redis_loses_everything_the_page_still_ends_on_the_notes_result(
    stage: Stage, valkey: RedisTarget, site: Site, tab: Open
) -> None:
    stage.start()
    page = tab(site)
    stage.write("What will be lost. ")
    page.shows("What will be lost. ")

    valkey.client.flushall()
    stage.write("What comes behind it.")
    wait_until(lambda: "the text begins again" in page.note, "the page says that the sequence was reset")
    page.shows("What comes behind it.")
    valkey.client.flushall()
    stage.finish("The whole summary, as the note has it.")

    page.becomes("done")
    page.shows("The whole summary, as the note has it.")
    assert stage.note().summary == page.text


@pytest.mark.req("sse-reset", "sse-double-check")
def test_a_reset_clears_the_text_and_says_so(stage: Stage, site: Site, tab: Open) -> None:
    workflow_id = stage.start()
    page = tab(site)
    stage.write("Of the first attempt. ")
    page.shows("Of the first attempt. ")

    stage.stumble()
    stage.write("Of the second. ")
    page.shows("Of the second. ")
    assert page.note == "restarted (1): the text begins again"
    stage.finish("Of the second.")

    page.becomes("done")
    page.shows("Of the second.")
    assert page.note == "restarted (1): the text begins again"
    assert stage.instance(workflow_id).steps[0].attempt == 2


def test_the_button_drops_the_connection_and_nothing_else(stage: Stage, site: Site, tab: Open) -> None:
    stage.start()
    page = tab(site)
    stage.write("Before. ")
    page.shows("Before. ")

    page.page.click("#drop")
    stage.write("After.")
    page.shows("Before. After.")
    wait_until(lambda: page.state == "live" and len(page.streams()) == 2, "a second connection goes on")
    assert "?after=" in page.streams()[-1]

    stage.finish("Before. After.")
    page.becomes("done")
    assert not page.page.locator("#drop").is_visible()


def test_frames_that_come_again_are_taken_once(stage: Stage, site: Site, tab: Open) -> None:
    """From a server that begins at the head whatever it was told (sse-no-last-event-id)."""
    stage.start()
    page = tab(site)
    page.page.route("**/stream/**", lambda route: route.continue_(url=route.request.url.partition("?")[0]))
    stage.write("One. ", "Two. ")
    page.shows("One. Two. ")

    page.page.click("#drop")
    stage.write("Three.")
    wait_until(lambda: page.text.endswith("Three."), "the second connection has told the third")
    assert page.text == "One. Two. Three."
    assert page.note == ""


HOSTILE = '<script>alert("script")</script><img src=x onerror=alert("img")>"\' &lt;b&gt; ${alert(1)}\u2028data: x'


@pytest.mark.req("sse-http")
def test_text_is_text_wherever_it_stands(stage: Stage, site: Site, tab: Open) -> None:
    """In the id, in the transcript, in frames, and in the result, with and without the script."""
    name = "<img src=x onerror=alert(1)>/../?#%00\"'"
    stage.start(name, transcript=HOSTILE)
    place = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%2F..%2F%3F%23%2500%22%27"
    page = tab(site, object_id=place)
    stage.write(HOSTILE, "\nevent: terminal\ndata: {}\n\n", note=name)
    page.shows(HOSTILE + "\nevent: terminal\ndata: {}\n\n")
    stage.finish(HOSTILE, note=name)
    page.becomes("done")
    page.shows(HOSTILE)
    assert page.page.locator("h1").text_content() == name
    assert page.page.locator("img, #text *").count() == 0

    late = tab(site, object_id=place)
    late.shows(HOSTILE)
    assert late.page.locator(".said").text_content() == HOSTILE
    assert late.streams() == [], "what has ended is shown as it is"
    without = tab(site, object_id=place, java_script_enabled=False)
    without.shows(HOSTILE)
    assert without.page.locator("img").count() == 0


def test_without_javascript_the_page_comes_to_the_result_by_itself(stage: Stage, site: Site, tab: Open) -> None:
    stage.start()
    page = tab(site, java_script_enabled=False)
    assert page.text == ""

    stage.finish("The result.")

    page.shows("The result.")
    assert page.state == "done"
