"""A list that never ends and a page that is never told: neither goes on in silence."""

from __future__ import annotations

from typing import Any

import pytest

from fanout import Page, Tally
from kernel import Yield
from kernel.errors import StoreUnavailable
from tests.fanout_runs.fake_flows import FakeInbox, StepRun
from tests.fanout_runs.lists import SubscriberList, event
from tests.fanout_runs.test_step import fan_out, run_of, waiting


@pytest.mark.parametrize("ahead", [0, 1, 5, 40])
@pytest.mark.parametrize("circle", [2, 3, 7, 50])
@pytest.mark.parametrize("kind", [int, str, lambda number: ("day", -number)], ids=["int", "text", "tuple"])
def test_a_list_that_runs_in_a_circle_is_stopped_and_goes_on_when_it_is_repaired(
    kind: Any, circle: int, ahead: int
) -> None:
    """After `ahead` pages that are right. Neither text in an order of its own nor a list from new to old is refused."""
    following = {kind(n): kind(n + 1) for n in range(ahead + circle)}
    following |= {None: kind(0), kind(ahead + circle - 1): kind(ahead)}
    run = StepRun(fan_out(lambda ctx, cursor, limit: Page(next_cursor=following[cursor])), event(), FakeInbox())
    pages = 0
    while isinstance(run.once(), Yield):
        pages += 1
    refused = run.directives[-1].checkpoint

    assert "was at this cursor before; it would never end" in refused.fault
    assert pages <= 4 * (ahead + circle)
    assert (refused.page_tries, refused.tally.pages) == (1, pages)
    following[refused.cursor] = None
    assert run.to_the_end().tally == Tally(pages=pages + 1, tries=1)


def test_a_long_list_never_meets_its_own_mark() -> None:
    run = run_of(SubscriberList.of_keys(3_000), page_size=3)

    assert run.to_the_end(2_000).tally == Tally(pages=1_000, unknown=3_000)


def test_a_page_that_is_never_told_is_logged_at_the_first_and_every_tenth_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = StepRun(fan_out(lambda ctx, cursor, limit: ctx.input.identities["typo"]), event(), FakeInbox())
    for _ in range(25):
        run.once()

    lines = [record for record in caplog.records if record.name == "fanout"]
    assert [line.getMessage() for line in lines] == [
        f"fan-out wf-fan-out (notify): the page after cursor None can not be told, try {tries}: KeyError: 'typo'"
        for tries in (1, 10, 20)
    ]
    assert [line.exc_info is not None for line in lines] == [True, False, False], "once with the place in the program"


def test_a_page_that_the_store_does_not_take_is_logged_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    inbox = waiting(3)
    inbox.fault_of = lambda signals: StoreUnavailable("away")
    run_of(SubscriberList.of_keys(3), inbox).once()

    (line,) = [record for record in caplog.records if record.name == "fanout"]
    assert (line.exc_info, line.getMessage().endswith("try 1: StoreUnavailable: away")) == (None, True)
