"""A subscriber has tries of its own: those in which its page could not even be read are none of them."""

from __future__ import annotations

import pytest

from kernel import workflow_id_for
from kernel.signals import Signal
from tests.fanout_runs.fake_flows import StepRun
from tests.fanout_runs.lists import SubscriberList, event
from tests.fanout_runs.test_step import fan_out, waiting


@pytest.mark.req("fan-page-signals")
@pytest.mark.parametrize(("count", "reads"), [(3, 2), (1, 10)], ids=["in a page", "alone in a page"])
def test_reads_in_vain_use_up_no_patience_for_a_subscriber(count: int, reads: int) -> None:
    """The list could not be read for a while; then telling one fails for a moment."""
    subscribers, inbox = SubscriberList.of_keys(count), waiting(count)
    unlucky, faults = workflow_id_for("sub:1"), [2 if count > 1 else 1]

    def before(cursor: object) -> None:
        if len(subscribers.reads) <= reads:
            raise OSError("too many open files")

    def fault(signals: list[Signal]) -> Exception | None:
        if faults[0] and any(signal.workflow_id == unlucky for signal in signals):
            faults[0] -= 1
            return OSError("too many open files")
        return None

    subscribers.before, inbox.fault_of = before, fault
    outcome = StepRun(fan_out(subscribers.read_page), event(), inbox).to_the_end()

    assert faults == [0], "it has failed"
    assert outcome.tally.malformed == 0
    assert {signal.workflow_id for signal in inbox.stored.values()} >= {unlucky}
