"""One business object from the moment its turn comes to the end of its dispatch (group 7, T-03, DECISIONS detail 8).

    read ─► claim ─► check the stored input ─► start_or_resume ─► confirm | release | refuse

Whatever the previous process died of does not matter: every step asks the facts (dsp-recover-from-facts). What the
answer of start_or_resume means is `kernel.intents.verdict`, shared with the request side:

| found | in this round, now or in a run before | in another round |
| --- | --- | --- |
| nothing, or failed in another round: made, or replayed | confirm | confirm |
| running, waiting, parked | confirm | later: it may still end, and be replayed then |
| failing | later: not while its finalizer may run | later |
| failed | confirm: it was registered, has run and failed | (replayed, see above) |
| failed under a plan that this one may not replace | confirm | refuse; later while workers of that plan are alive |
| completed, canceled | confirm: nothing is left to register | refuse: it can never be registered |

An instance that names no round was started by its key: it counts as an object's first round, and as another for a later
one. A parked instance counts as what it was: unpark brings it back, so it is no end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from kernel.clock import Clock
from kernel.credentials import without_credentials
from kernel.definition import Plan
from kernel.dispatch import OPEN, DispatchSource, DueIntent, Intent
from kernel.engine.bad_intents import BadIntents
from kernel.engine.intent_lease import IntentLease
from kernel.engine.ports import Runner
from kernel.engine.settings import Settings
from kernel.errors import (
    CheckpointError,
    ClaimLost,
    CorruptRecord,
    KernelError,
    Refused,
)
from kernel.ids import IdSource
from kernel.intents import Registrar, Verdict, register
from kernel.intents import Registration as Registered

log = logging.getLogger("kernel.dispatch")

ERROR_CHARACTERS_MAX = 2_000


class Decided(msgspec.Struct, frozen=True):
    """What becomes of an intent after one try, and why. `bad`: the intent itself is at fault, not the moment."""

    verdict: Verdict
    reason: str = ""
    bad: bool = False


class Surroundings(msgspec.Struct, frozen=True):
    """What registering needs to know of its process."""

    registrar: Registrar
    plan_of: Callable[[str], Plan]
    """Raises UnknownType for a type that this process does not know."""
    live_definitions: Callable[[], frozenset[str]]
    """The versions that some worker has said to be alive."""
    settings: Settings
    clock: Clock
    ids: IdSource
    runner: Runner


class Registration:
    """Handles single objects of one source. Safe for many threads; two calls share only counters and hints."""

    def __init__(
        self,
        source: DispatchSource,
        around: Surroundings,
        bad: BadIntents,
        note: Callable[[list[DueIntent]], object],
        count: Callable[[str], None],
    ) -> None:
        self._source = source
        self._a = around
        self._bad = bad
        self._note = note
        self._count = count

    def handle(self, object_id: str) -> None:
        """One try for one object. Raises Unavailable when the source does not answer, and whatever it raises for an
        intent that it can not decode or build; nothing is held then, or only until its lease runs out."""
        seen = self._source.read(object_id)
        if seen is None or seen.status not in OPEN:
            self._bad.forget(object_id)
            return  # deleted, confirmed or refused meanwhile: the hint was old
        if seen.due_time is not None and seen.due_time > self._source.now_ms():
            self._note([DueIntent(object_id, seen.due_time)])
            return
        claim_token, sent_at_ms = self._a.ids.token(), self._a.clock.boot_ms()
        held = self._source.claim(object_id, seen, claim_token, self._a.settings.dispatch_lease_ms)
        if held is None:
            self._note([DueIntent(object_id, self._source.now_ms() + self._bad.missed(object_id))])
            return
        self._dispatch(object_id, held, claim_token, sent_at_ms)

    def _dispatch(self, object_id: str, held: Intent, claim_token: str, sent_at_ms: int) -> None:
        lease = IntentLease(
            self._source,
            object_id,
            fencing_token=held.fencing_token,
            claim_token=claim_token,
            lease_ms=self._a.settings.dispatch_lease_ms,
            sent_at_ms=sent_at_ms,
            clock=self._a.clock,
            runner=self._a.runner,
        )
        lease.start()
        try:
            decided = self._decide(object_id, held, lease)
            lease.check()
        except ClaimLost as error:
            # No confirm and no release: both would miss, and what was registered is what the next holder finds.
            log.info("a dispatch was given up: %s", error)
            self._count("lost")
            return
        finally:
            lease.end()
        self._conclude(object_id, held, claim_token, decided)

    def _decide(self, object_id: str, held: Intent, lease: IntentLease) -> Decided:
        """Register, and say what the answer means."""
        try:
            plan = self._a.plan_of(held.type)
            found = register(
                self._a.registrar, plan, held, object_id, key=self._source.key_field, before_write=lease.check
            )
            return self._decided(found)
        except ClaimLost:
            raise
        except (Refused, CheckpointError, CorruptRecord) as error:
            return Decided("wait", f"{error.code}: {error}", bad=True)
        except KernelError as error:
            return Decided("wait", f"{error.code}: {error}")
        except Exception as error:
            reason = without_credentials(f"{type(error).__name__}: {error}")
            if self._bad.report(object_id, reason):
                log.exception("registering %s of %s failed", object_id, self._source.name)
            return Decided("wait", reason, bad=True)

    def _decided(self, found: Registered) -> Decided:
        if found.verdict == "confirm":
            return Decided("confirm")
        instance = found.instance
        if found.branch != "definition_mismatch":
            if found.branch == "failing":  # of whatever round
                return Decided(found.verdict, "the instance is still failing: its failure finalizer may run")
            return Decided(found.verdict, f"the instance is {found.branch} in another round")
        reason = f"the instance failed under {instance.definition_key}, which the plan at hand may not replace"
        # While a release is rolled out, a dispatcher that has the other plan may replay it.
        rolling = instance.definition_key in self._a.live_definitions()
        return Decided("wait" if rolling else found.verdict, reason)

    def _conclude(self, object_id: str, held: Intent, claim_token: str, decided: Decided) -> None:
        reason = decided.reason[:ERROR_CHARACTERS_MAX]
        if decided.verdict == "confirm":
            if self._source.confirm(object_id, held.fencing_token, claim_token):
                self._bad.forget(object_id)
                self._count("dispatched")
        elif decided.verdict == "refuse":
            if self._source.refuse(object_id, held.fencing_token, claim_token, reason):
                log.warning("round %s of %s is refused: %s", held.fencing_token, object_id, reason)
                self._count("refused")
        else:
            if decided.bad:
                self._bad.report(object_id, reason)
                self._count("poison")
            self._release(object_id, held, claim_token, reason)

    def _release(self, object_id: str, held: Intent, claim_token: str, reason: str) -> None:
        """Later again: same round, same input. The candidate gets the due time that the write chose (dsp-release)."""
        settings = self._a.settings
        delay_ms = min(settings.dispatch_delay_ms * 2 ** min(held.tries, 30), settings.dispatch_delay_max_ms)
        # Jitter: what failed together because a store was away does not come back in the same instant.
        delay_ms = max(1, round(delay_ms * (1 - 0.2 * self._a.ids.fraction())))
        due_ms = self._source.release(object_id, held.fencing_token, claim_token, delay_ms, reason)
        if due_ms is not None:
            self._count("released")
            self._note([DueIntent(object_id, due_ms)])
