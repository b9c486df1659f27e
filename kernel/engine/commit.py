"""Committing a transition under a claim, whatever the connection does (clm-uncertain, DECISIONS detail 3).

Three outcomes, no guessing: the record after the write, ClaimLost (missed, or uncertain and not ours any more), or
Fenced. An answer that got lost is decided by one majority read: our commit_id is in the row → it landed; it is not
and the claim is still ours → the same transition once more, never another; otherwise this claim is over here, and
the lease decides.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel.engine.claims import ActiveClaim
from kernel.engine.ports import Event
from kernel.errors import ClaimLost, OutcomeUnknown, StoreUnavailable
from kernel.ids import IdSource
from kernel.records import Document, Instance, to_instance
from kernel.store.conditional import Applied, Transition
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES

COMMIT_ID_DIGITS = 16
_RETRY_FIRST_S = 0.02
_RETRY_MAX_S = 1.0


class Committer:
    """The only way in which the engine writes under a claim."""

    def __init__(self, store: Store, ids: IdSource, pause: Event) -> None:
        self._store = store
        self._ids = ids
        self._pause = pause
        self.commits = 0
        """Transitions that hit, for status and for the crash-loop verdict."""

    def commit_id(self) -> str:
        return self._ids.token()[:COMMIT_ID_DIGITS]

    def commit(self, claim: ActiveClaim, build: Callable[[str], Transition]) -> Instance:
        """Apply `build(commit_id)` and return the record after it, which is also the claim's record from then on.

        A store that is away is waited for as long as the claim lives: the work of a finished activity is not
        thrown away because of a short outage. Raises ClaimLost or Fenced; after either nothing more may be written.
        """
        transition = build(self.commit_id())
        delay_s = _RETRY_FIRST_S
        while True:
            claim.check()
            try:
                document = self._landed(transition)
                break
            except StoreUnavailable:
                # Certainly not applied: the same transition may be sent again until the fence falls.
                self._pause.wait(delay_s)
                delay_s = min(delay_s * 2, _RETRY_MAX_S)
        if document is None:
            claim.lose("claim_lost")
            raise ClaimLost(f"{claim.held.workflow_id}: {transition.name} found that the claim is gone")
        instance = to_instance(document)
        claim.update(instance)
        self.commits += 1
        return instance

    def _landed(self, transition: Transition) -> Document | None:
        """The row after the transition, or None when it missed. Raises StoreUnavailable when it was not applied."""
        try:
            answer = self._store.apply(transition)
        except OutcomeUnknown:
            return self._settle(transition)
        return answer.document if isinstance(answer, Applied) else None

    def _settle(self, transition: Transition) -> Document | None:
        try:
            document = self._store.get(INSTANCES, transition.key)
        except (StoreUnavailable, OutcomeUnknown):
            return None
        if document is None:
            return None
        if transition.commit_id in document.get("commit_ids", ()):
            return document
        token = next((g.value for g in transition.guards if g.field == "claim_token" and hasattr(g, "value")), None)
        if token is not None and document.get("claim_token") == token:
            raise StoreUnavailable(f"{transition.name} on {transition.key} did not land")
        return None


def settled(store: Store, transition: Transition) -> Document | None:
    """Apply a transition that no claim guards (activation, supersede, …): the row after it, or None when it missed.

    An answer that got lost is decided by the commit_id; a write that did not land is sent once more, because "missed"
    would tell the caller that there is nothing to do. StoreUnavailable and an undecidable outcome pass through.
    """
    try:
        answer = store.apply(transition)
    except OutcomeUnknown:
        document = _marked(store, transition)
        if document is not None or transition.commit_id is None:
            return document
        answer = store.apply(transition)
        if not isinstance(answer, Applied):
            return _marked(store, transition)  # the first one may have landed after the reading
    return answer.document if isinstance(answer, Applied) else None


def _marked(store: Store, transition: Transition) -> Document | None:
    """The row, if it bears the mark of this very write."""
    document = store.get(INSTANCES, transition.key)
    if document is not None and transition.commit_id in document.get("commit_ids", ()):
        return document
    return None
