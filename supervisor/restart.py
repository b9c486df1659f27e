"""When a dead child comes back: a pure policy, time is handed in (dc-restart-child, DECISIONS detail 23).

Two questions are kept apart. *How long to wait*: the delay doubles with every death until the child has proved itself
(ran long enough, or committed work). *Whether to give up*: only start failures count, which are deaths before *ready*,
or within 2 s of it without a commit and by the process's own fault. A slot whose child once proved itself is restarted
for ever: what fails then is the world around it, and ending the tree would make that worse (A63). So is one whose child
says that the store is away: nothing is known of the program then, neither good nor bad.
"""

from __future__ import annotations

import msgspec

from kernel.config import Config

YOUNG_MS = 2_000
"""A child that dies this soon after *ready* without having committed anything has failed at start."""


class RestartPolicy(msgspec.Struct, frozen=True):
    """Delays in milliseconds; `give_up` start failures in a row are the verdict."""

    first_ms: int
    max_ms: int
    give_up: int
    stable_ms: int

    @classmethod
    def of(cls, config: Config) -> RestartPolicy:
        return cls(
            first_ms=round(config.restart_first_s * 1000),
            max_ms=round(config.restart_max_s * 1000),
            give_up=config.restart_give_up,
            stable_ms=round(config.restart_stable_s * 1000),
        )


class Death(msgspec.Struct, frozen=True):
    """What the policy must know of one death."""

    committed: bool = False
    ordered: bool = False
    """The supervisor wanted this end (recycle)."""
    requested: bool = False
    """An operator had this child killed through the control socket."""
    by_sigkill: bool = False
    """No program sends itself SIGKILL: after *ready* it is no sign of a faulty start."""
    store_away: bool = False
    """It ended because the durable store did not answer or took no writes."""


class Verdict(msgspec.Struct, frozen=True):
    """Fork a successor in `delay_ms`, or give up."""

    delay_ms: int
    give_up: bool = False


class RestartHistory:
    """The deaths of one slot."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._ready_ms: int | None = None
        self._doublings = 0
        self._proved = False
        self.start_failures = 0

    def forked(self) -> None:
        self._ready_ms = None

    def ready(self, now_ms: int) -> None:
        self._ready_ms = now_ms

    def died(self, death: Death, now_ms: int) -> Verdict:
        """Count one death and decide. Call once per forked child."""
        if death.ordered:
            return Verdict(0)
        age_ms = None if self._ready_ms is None else now_ms - self._ready_ms
        if age_ms is not None and (death.committed or age_ms >= self._policy.stable_ms):
            self._proved = True
            self._doublings = 0
        if death.requested and age_ms is not None:
            return Verdict(self._policy.first_ms)
        young = age_ms is None or (age_ms < YOUNG_MS and not death.committed and not death.by_sigkill)
        if not death.store_away:
            self.start_failures = self.start_failures + 1 if young else 0
        if self.start_failures >= self._policy.give_up and not self._proved:
            return Verdict(0, give_up=True)
        delay = min(self._policy.first_ms << min(self._doublings, 30), self._policy.max_ms)
        self._doublings += 1
        return Verdict(delay)
