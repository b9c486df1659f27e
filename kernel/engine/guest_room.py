"""When a busy worker keeps its slots free for a suspect, which runs only in an empty one (DECISIONS detail 4).

For one scan period it leaves the suspect to others. Then it takes nothing new until it is empty, because there may be
more of the other work for ever. But an activity of hours would keep it from being empty for as long, with all other
slots idle, and every worker meets the same suspect: so it makes room for four scan periods, then works for at least as
long, then makes room for twice as long as before, and so on. More than half of the time it works (L11), and sooner or
later some worker is empty.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel.engine.takeover import Suspect

_ROOM_SCANS = 4


class GuestRoom:
    """Of one worker; times are the boot clock's, in ms."""

    def __init__(self, scan_ms: int, fraction: Callable[[], float]) -> None:
        self._scan_ms = scan_ms
        self._fraction = fraction
        self._room_ms = _ROOM_SCANS * scan_ms
        self._since_ms = 0
        self._again_ms = 0
        self.guest: Suspect | None = None
        """Whom it expects."""

    def expect(self, suspect: Suspect, now_ms: int) -> None:
        """A suspect was met beside other work; nothing changes while another one is expected, or after a vain try."""
        if self.guest is None and now_ms >= self._again_ms:
            self.guest, self._since_ms = suspect, now_ms

    def is_kept(self, now_ms: int) -> bool:
        """Whether nothing new is taken."""
        return self.guest is not None and now_ms - self._since_ms >= self._scan_ms

    def is_in_vain(self, now_ms: int) -> bool:
        """Whether it was kept for long enough without the worker having become empty."""
        return self.is_kept(now_ms) and now_ms - self._since_ms >= self._scan_ms + self._room_ms

    def give_up(self, now_ms: int) -> None:
        """Work goes on. Not in step with other workers, so that they do not make room all at once again."""
        self.guest = None
        self._again_ms = now_ms + round(self._room_ms * (1 + self._fraction()))
        self._room_ms *= 2

    def forget(self) -> None:
        """The suspect was received, or nobody has to wait for it any more."""
        self.guest = None
        self._room_ms = _ROOM_SCANS * self._scan_ms
