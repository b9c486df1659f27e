"""Finding the application by its path: one line for whatever is wrong with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel.app import App
from kernel.errors import InvalidConfig, StoreUnavailable
from kernel.observe.events import EVENTS, LogObserver
from kernel.runtime import load_app


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Write a module into the working directory of this test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_app_is_found_in_the_working_directory(module: Callable[[str, str], None]) -> None:
    module("flows_here", "from kernel import App\napp = App()\n")

    assert isinstance(load_app("flows_here:app"), App)


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        (None, "", "name your application"),
        ("no_such_module_here:app", "", "there is no module 'no_such_module_here'"),
        ("broken_flows:app", "import no_such_driver_here", "there is no module 'no_such_driver_here'"),
        ("broken_flows:app", "1 / 0", "importing it failed: ZeroDivisionError: division by zero"),
        ("broken_flows:app", "from kernel import Step\nStep('A', print)", "'A' is no name"),
        ("broken_flows:app", "x = 1", "expected a kernel.App named 'app', found nothing"),
        ("broken_flows:app", "app = 7", "expected a kernel.App named 'app', found a int"),
    ],
)
def test_what_is_wrong_with_it_is_told_in_one_line(
    module: Callable[[str, str], None], path: str | None, text: str, words: str
) -> None:
    module("broken_flows", text)

    with pytest.raises(InvalidConfig) as caught:
        load_app(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith("app: ")
    assert "\n" not in str(caught.value)


def test_a_store_that_is_away_at_the_import_is_no_fault_of_the_application(module: Callable[[str, str], None]) -> None:
    module("opening_flows", "from kernel.errors import StoreUnavailable\nraise StoreUnavailable('it does not answer')")

    with pytest.raises(StoreUnavailable, match="it does not answer"):
        load_app("opening_flows:app")


def test_events_go_to_the_log_with_their_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "kernel.events"):
        for event in EVENTS:
            LogObserver().note(event, workflow_id="wf-1", attempt=2)

    assert [record.getMessage() for record in caplog.records] == list(EVENTS)
    assert [record.__dict__["event"] for record in caplog.records] == list(EVENTS)
    assert [record.levelno for record in caplog.records] == list(EVENTS.values())
    assert {(r.__dict__["workflow_id"], r.__dict__["attempt"]) for r in caplog.records} == {("wf-1", 2)}


def test_an_event_outside_the_list_does_not_vanish() -> None:
    with pytest.raises(ValueError, match=r"step\.finnished"):
        LogObserver().note("step.finnished")
