"""A reader of the page's streams that is no browser: raw HTTP, one event at a time, as `curl -N` shows them."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from tests.support.wait import wait_until

PATIENCE_S = 60.0


class Event(NamedTuple):
    """One event as it came over the wire."""

    name: str
    id: str | None
    data: Any
    retry: str | None


class Reading:
    """A request and its answer; `events` reads on until the server ends it."""

    def __init__(self, port: int, path: str, *, method: str = "GET", **headers: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, headers=named)
        self.answer = self._connection.getresponse()
        self.status = self.answer.status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.answer.close()
        self._connection.close()

    def text(self) -> str:
        return self.answer.read().decode()

    def events(self) -> Iterator[Event]:
        """All of them, the page's pulses left out."""
        fields: dict[str, str] = {}
        for line in self.answer:
            name, _, value = line.decode().rstrip("\r\n").partition(": ")
            if name:
                fields[name] = value
            elif fields:
                event = Event(
                    fields.get("event", ""),
                    fields.get("id"),
                    msgspec.json.decode(fields["data"]) if "data" in fields else None,
                    fields.get("retry"),
                )
                fields = {}
                if event.name != "pulse":
                    yield event

    def named(self, name: str) -> Iterator[Event]:
        return (event for event in self.events() if event.name == name)

    def frames(self, count: int) -> list[Event]:
        """The next `count` frames."""
        found: list[Event] = []
        for event in self.named("frame"):
            found.append(event)
            if len(found) == count:
                break
        return found


def opened(port: int, path: str, **headers: str) -> Reading:
    """The stream, as soon as it is there: what is accepted is registered a moment later."""

    def attempt() -> Reading | None:
        reading = Reading(port, path, **headers)
        if reading.status == 200:
            return reading
        reading.close()
        return None

    return wait_until(attempt, f"{path} is there", every=0.2)  # type: ignore[return-value]


def get(port: int, path: str, **headers: str) -> tuple[int, str]:
    """Status and text of one answer."""
    with Reading(port, path, **headers) as reading:
        return reading.status, reading.text()
