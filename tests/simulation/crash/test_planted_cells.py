"""The cells find what they are there to find: each fault is planted into the kernel, and the named cell must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernel import transitions
from kernel.engine import commit, lease
from kernel.engine.inbox import Inbox
from kernel.engine.inbox_sweep import InboxSweep
from kernel.engine.intent_lease import IntentLease
from kernel.engine.permits import PermitDesk
from kernel.engine.sweeps import Sweeps, Swept
from kernel.store.conditional import Applied, Transition
from kernel.stream_writer import StreamWriter
from supervisor.owners import DeadOwners
from supervisor.restart import RestartHistory, Verdict
from supervisor.shutdown import Shutdown
from tests.simulation.crash.cells import CELLS
from tests.simulation.crash.scenes import SEEDS, play

Plant = Callable[[pytest.MonkeyPatch], None]


def no_marks(patch: pytest.MonkeyPatch) -> None:
    """Nobody finds in a row that a write of its own has landed."""
    patch.setattr(commit, "bears_mark", lambda document, commit_id: False)


def attempts_kept(patch: pytest.MonkeyPatch) -> None:
    """Waiting uses up an attempt (M8)."""
    build = transitions.suspend_step

    def planted(*args: Any, **named: Any) -> Transition:
        made = build(*args, **named)
        changes = tuple(change for change in made.changes if not change.field.endswith(".attempt"))
        return Transition(made.name, made.table, made.key, made.guards, changes, made.commit_id)

    patch.setattr(transitions, "suspend_step", planted)


def unknown_is_renewed(patch: pytest.MonkeyPatch) -> None:
    """A renewal of which nobody has heard counts as one that was granted."""

    def renew(self: lease.Renewals, due: list[Any]) -> None:
        sent_at_ms = self._clock.boot_ms()
        try:
            answers = self._store.apply_all([transitions.renew(c.held, self._settings.lease_ms) for c in due])
        except Exception:
            answers = []
        for number, claim in enumerate(due):
            if number >= len(answers) or isinstance(answers[number], Applied):
                claim.renewed(sent_at_ms)

    patch.setattr(lease.Renewals, "_renew", renew)


def nothing_is_owed(patch: pytest.MonkeyPatch) -> None:
    """A place that may have been granted is forgotten."""
    patch.setattr(PermitDesk, "_owe", lambda self, place: None)


def nobody_looks_into_the_inbox(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Inbox, "recheck", lambda self, instance: None)
    patch.setattr(InboxSweep, "_page", lambda self, repaired=None: None)


def nobody_scans(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sweeps, "recover", lambda self, every_ms: Swept())


def intent_leases_last(patch: pytest.MonkeyPatch) -> None:
    """A dispatcher that has lost its lease confirms all the same."""
    patch.setattr(IntentLease, "check", lambda self: None)


def frames_without_a_number(patch: pytest.MonkeyPatch) -> None:
    """Each try of an append is another request (M13)."""
    tried = StreamWriter._tried

    def planted(self: StreamWriter, item: Any) -> bool:
        self._request += 1
        return tried(self, item)

    patch.setattr(StreamWriter, "_tried", planted)


def no_back_off(patch: pytest.MonkeyPatch) -> None:
    died = RestartHistory.died

    def planted(self: RestartHistory, death: Any, now_ms: int) -> Verdict:
        died(self, death, now_ms)
        return Verdict(0)

    patch.setattr(RestartHistory, "died", planted)


def nobody_is_told_to_drain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shutdown, "drain_one", lambda self, slot: None)


def nobody_releases_at_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeadOwners, "provide", lambda self: None)


def without_token(name: str) -> Plant:
    """That write does not ask for the claim (M1): a copy of it that comes late would hit."""
    build = getattr(transitions, name)

    def planted(*args: Any, **named: Any) -> Transition:
        made = build(*args, **named)
        guards = tuple(guard for guard in made.guards if guard.field != "claim_token")
        return Transition(made.name, made.table, made.key, guards, made.changes, made.commit_id)

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(transitions, name, planted)

    plant.__name__ = f"{name}_without_token"
    return plant


OF_HOLDERS = {
    "26a": "begin_step", "28a": "complete_step", "29a": "retry_step", "30a": "release", "31a": "skip_step",
    "32a": "fail_step", "34a": "finish_failed", "36a": "finish_completed", "38a": "suspend_step", "41a": "yield_step",
    "42a": "finish_canceled", "23a": "defer_for_permit", "44a": "activate_own", "60a": "unbegin",
}  # fmt: skip

PLANTED: list[tuple[Plant, str]] = [
    *((without_token(name), where) for where, name in OF_HOLDERS.items()),
    (no_marks, "28b"),
    (attempts_kept, "38b"),
    (unknown_is_renewed, "21b"),
    (nothing_is_owed, "22b"),
    (nobody_looks_into_the_inbox, "40b"),
    (nobody_looks_into_the_inbox, "50a"),
    (nobody_scans, "18c"),
    (nobody_scans, "06a"),
    (intent_leases_last, "13b"),
    (frames_without_a_number, "54b"),
    (no_back_off, "61b"),
    (nobody_is_told_to_drain, "60b"),
    (nobody_releases_at_the_end, "60b"),
]


@pytest.mark.parametrize(("plant", "where"), PLANTED, ids=[f"{where}-{plant.__name__}" for plant, where in PLANTED])
def test_a_planted_fault_is_found_by_its_cell(monkeypatch: pytest.MonkeyPatch, plant: Plant, where: str) -> None:
    (cell,) = [cell for cell in CELLS if f"{cell.boundary.number}{cell.point}" == where]
    plant(monkeypatch)

    with pytest.raises(AssertionError, match=rf"\A{where} "):
        for scene in cell.scenes:
            for seed in SEEDS:
                play(scene, cell.point, seed)
