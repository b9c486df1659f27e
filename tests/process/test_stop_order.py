"""Who waits for whom when a tree ends (shd-concurrent-callbacks)."""

from __future__ import annotations

import signal

import pytest

from kernel import App, Companion
from kernel.errors import InvalidDefinition
from supervisor import roles
from supervisor.boot import Program
from supervisor.roles import Roles
from tests.process.supervised import STUBS, Supervised
from tests.support.wait import wait_until

pytestmark = pytest.mark.fault

GATED = f"{STUBS}:gated"


def started(supervise) -> Supervised:
    """A gated worker, a web companion that stops beside it, and a speech service that the worker may need."""
    companions = [
        roles.Companion("web", GATED, stop="with_workers"),
        roles.Companion("speech", GATED, stop="after_workers"),
    ]
    tree = supervise(
        Program(Roles(GATED, GATED, None), companions), redis_url=None, dispatchers=0, workers=1, drain_s=300.0
    )
    tree.wait_running()
    return tree


def states(tree: Supervised) -> dict[str, str]:
    status = tree.status()
    assert status is not None
    return {child["name"]: child["state"] for child in status["children"]}


def may_end(tree: Supervised, role: str) -> None:
    (tree.data_dir / f"{role}-may-end").touch()


@pytest.mark.req("shd-concurrent-callbacks")
def test_a_slow_web_close_does_not_hold_up_the_drain_of_a_worker(supervise) -> None:
    tree = started(supervise)
    tree.process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(tree.heard("drain")) == 2, "worker and web have their order side by side")

    may_end(tree, "worker")

    wait_until(lambda: states(tree)["worker-0"] == "STOPPED", "the worker ends")
    assert states(tree) == {"valkey": "RUNNING", "web": "DRAINING", "speech": "RUNNING", "worker-0": "STOPPED"}

    may_end(tree, "speech")
    may_end(tree, "web")
    assert tree.wait_end() == 0


@pytest.mark.req("shd-concurrent-callbacks")
def test_a_slow_drain_of_a_worker_does_not_hold_up_the_web_and_keeps_what_it_needs(supervise) -> None:
    tree = started(supervise)
    tree.process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(tree.heard("drain")) == 2, "worker and web have their order side by side")

    may_end(tree, "web")

    wait_until(lambda: states(tree)["web"] == "STOPPED", "the web companion ends")
    assert states(tree) == {"valkey": "RUNNING", "web": "STOPPED", "speech": "RUNNING", "worker-0": "DRAINING"}
    assert {fact["role"] for fact in tree.heard("drain")} == {"worker", "web"}

    may_end(tree, "speech")
    may_end(tree, "worker")
    assert tree.wait_end() == 0
    ends = [line["x"]["child"] for line in tree.log("child.exited")]
    assert ends[:2] == ["web", "worker-0"]
    assert set(ends[2:]) == {"speech", "valkey"}
    (end,) = tree.log("drain.end")
    assert end["elapsed_ms"] >= 0


def test_a_hastened_web_companion_is_not_waited_for(supervise) -> None:
    tree = started(supervise)
    tree.process.send_signal(signal.SIGTERM)
    wait_until(lambda: len(tree.heard("drain")) == 2, "the order is heard")

    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 1, "both are gone long before the grace time of 300 s, though no gate was opened"


def test_the_probe_tells_the_tree_when_a_companion_ends(supervise) -> None:
    app = f"{__name__}:APP"
    tree = supervise(Program(Roles(f"{STUBS}:worker", f"{STUBS}:dispatcher")), app=app, dispatchers=0)
    tree.wait_running()

    tree.process.send_signal(signal.SIGTERM)

    assert tree.wait_end() == 0
    ends = [line["x"]["child"] for line in tree.log("child.exited")]
    assert ends[-1] == "speech"
    assert set(ends[:-1]) == {"web", "worker-0"}


APP = App(
    companions=(
        Companion("speech", f"{STUBS}:companion"),
        Companion("web", f"{STUBS}:companion", stop="with_workers"),
    )
)


def test_another_word_than_the_two_is_refused() -> None:
    with pytest.raises(InvalidDefinition, match="companion 'web': stop 'first' is not after_workers or with_workers"):
        Companion("web", "pages:main", stop="first")  # type: ignore[arg-type]
