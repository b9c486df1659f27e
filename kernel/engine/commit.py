"""Committing a transition under a claim, whatever the connection does (clm-uncertain, DECISIONS detail 3).

Three outcomes, no guessing: the record after the write, ClaimLost (missed, or uncertain and not ours any more), or
Fenced. An answer that got lost is decided by one majority read: our commit_id is in the row → it landed; it is not
and the claim is still ours → the same transition once more, never another; otherwise this claim is over here, and
the lease decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kernel.engine.claims import ActiveClaim
from kernel.engine.ports import Event
from kernel.errors import ClaimLost, CorruptRecord, OutcomeUnknown, StoreUnavailable
from kernel.ids import IdSource
from kernel.records import Document, Instance, bears_mark, to_instance
from kernel.store.conditional import Applied, Transition
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES

_COMMIT_ID_DIGITS = 16
_RETRY_FIRST_S = 0.02
_RETRY_MAX_S = 1.0


def fresh_commit_id(ids: IdSource) -> str:
    """The mark of one write: unique among the few that a row keeps, and short because every row keeps them."""
    return ids.token()[:_COMMIT_ID_DIGITS]


class Committer:
    """The only way in which the engine writes under a claim."""

    def __init__(self, store: Store, ids: IdSource, pause: Event) -> None:
        self._store = store
        self._ids = ids
        self._pause = pause
        self.commits = 0
        """Claims and transitions under them that hit, for status and for the crash-loop verdict."""
        self.on_first_commit: Callable[[], None] = lambda: None
        """Called once, before any business code is entered: that may end this process."""

    def commit_id(self) -> str:
        return fresh_commit_id(self._ids)

    def commit(self, claim: ActiveClaim, build: Callable[[str], Transition]) -> Instance:
        """Apply `build(commit_id)` and return the record after it, which is also the claim's record from then on.

        A store that is away is waited for as long as the claim lives: the work of a finished activity is not
        thrown away because of a short outage. Raises ClaimLost or Fenced; after either nothing more may be written.
        """
        transition = build(self.commit_id())
        instance = self._sent(claim, transition)
        if instance is None:
            raise self._lost(claim, transition)
        return instance

    def attempt(self, claim: ActiveClaim, build: Callable[[str], Transition]) -> Instance | None:
        """As `commit`, for a transition that may miss although the claim is ours: one that is only due by our
        estimate of the store's clock. None then; ClaimLost when the claim is gone."""
        transition = build(self.commit_id())
        instance = self._sent(claim, transition)
        if instance is None and not self._is_ours(claim, self._read(claim, transition)):
            raise self._lost(claim, transition)
        return instance

    def _sent(self, claim: ActiveClaim, transition: Transition) -> Instance | None:
        """Send until the outcome is certain: the record after the write, or None when it missed."""
        delay_s = _RETRY_FIRST_S
        unsure = False
        while True:
            claim.check()
            try:
                answer = self._store.apply(transition)
                if isinstance(answer, Applied):
                    return self._landed(claim, answer.document)
                # After a lost answer a miss may mean that the first copy has landed since.
                return self._marked(claim, transition) if unsure else None
            except OutcomeUnknown:
                unsure = True
                landed = self._marked(claim, transition)
                if landed is not None:
                    return landed
                if not self._is_ours(claim, self._read(claim, transition)):
                    return None
            except StoreUnavailable:
                pass  # certainly not applied
            self._pause.wait(delay_s)
            delay_s = min(delay_s * 2, _RETRY_MAX_S)

    def _landed(self, claim: ActiveClaim, document: Document) -> Instance:
        instance = to_instance(document)
        claim.update(instance)
        self.count_commit()
        return instance

    def count_commit(self) -> None:
        """One more write of this process has hit."""
        self.commits += 1
        if self.commits == 1:
            self.on_first_commit()

    def _marked(self, claim: ActiveClaim, transition: Transition) -> Instance | None:
        """The record, if it bears the mark of this very write."""
        document = self._read(claim, transition)
        if document is not None and bears_mark(document, transition.commit_id):
            return self._landed(claim, document)
        return None

    def _read(self, claim: ActiveClaim, transition: Transition) -> Document | None:
        """The row as it is. A store that does not even answer this ends the claim: the lease decides."""
        try:
            return self._store.get(INSTANCES, transition.key)
        except (StoreUnavailable, OutcomeUnknown):
            raise self._lost(claim, transition) from None

    @staticmethod
    def _is_ours(claim: ActiveClaim, document: Document | None) -> bool:
        return document is not None and document.get("claim_token") == claim.held.claim_token

    @staticmethod
    def _lost(claim: ActiveClaim, transition: Transition) -> ClaimLost:
        claim.lose("claim_lost")
        return ClaimLost(f"{claim.held.workflow_id}: {transition.name} found that the claim is gone")


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


def settled_each(store: Store, transitions: Sequence[Transition]) -> Iterator[Document | None]:
    """As `settled`, for independent transitions at the price of few commits; None as well for a row that does not
    decode, which keeps none of the others. StoreUnavailable and an undecidable outcome pass through, after what is
    certain was given."""
    if not transitions:
        return
    try:
        answers = store.apply_all(transitions)
    except (OutcomeUnknown, CorruptRecord, StoreUnavailable):
        # Lost, or one of them raised for all, and some may have been applied before: each tells what became of it.
        for transition in transitions:
            yield _settled_once(store, transition)
        return
    for answer in answers:
        yield answer.document if isinstance(answer, Applied) else None


def _settled_once(store: Store, transition: Transition) -> Document | None:
    try:
        return _marked(store, transition) or settled(store, transition)
    except CorruptRecord:
        return None


def _marked(store: Store, transition: Transition) -> Document | None:
    """The row, if it bears the mark of this very write."""
    document = store.get(INSTANCES, transition.key)
    if document is not None and bears_mark(document, transition.commit_id):
        return document
    return None
