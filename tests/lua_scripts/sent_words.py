"""What a call really sends: a connection that keeps the request, which is taken apart by the script's contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kernel.clock import SystemClock
from kernel.coordination import ScriptRunner
from lua import Script


class KeptLink:
    """A connection that keeps what was sent last and answers every request with `reply`."""

    def __init__(self, reply: Any) -> None:
        self.reply = reply
        self.sent = b""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def can_read(self, timeout: float = 0) -> bool:
        return False

    def send_packed_command(self, command: Iterable[bytes], check_health: bool = True) -> None:
        self.sent = b"".join(command)

    def read_response(self) -> Any:
        return self.reply


def arguments_sent(script: Script, reply: Any, operation: Callable[[ScriptRunner], object]) -> dict[str, Any]:
    """ARGV of the one call of `script` that `operation` makes, by the names in its contract; the group that repeats as
    one tuple for each of its names."""
    link = KeptLink(reply)
    operation(ScriptRunner(lambda timeout_s: link, SystemClock()))
    words = _words(link.sent)
    assert words[:2] == [b"EVALSHA", script.sha1.encode()]
    assert int(words[2]) == len(script.keys)
    given = words[3 + len(script.keys) :]
    names = [*script.args, *script.optional]
    assert len(given) >= len(script.args)
    rest = given[len(names) :]
    assert len(rest) % max(len(script.repeated), 1) == 0
    repeated = {name: tuple(rest[at :: len(script.repeated)]) for at, name in enumerate(script.repeated)}
    return dict(zip(names, given, strict=False)) | repeated


def _words(request: bytes) -> list[bytes]:
    count, _, rest = request.removeprefix(b"*").partition(b"\r\n")
    words = []
    for _ in range(int(count)):
        size, _, rest = rest.removeprefix(b"$").partition(b"\r\n")
        words.append(rest[: int(size)])
        assert rest[int(size) : int(size) + 2] == b"\r\n"
        rest = rest[int(size) + 2 :]
    assert rest == b""
    return words
