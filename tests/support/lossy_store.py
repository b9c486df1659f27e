"""A store whose replies get lost: what a cut connection does to a writer, at will (RELIABILITY 2.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernel.errors import OutcomeUnknown
from kernel.records import Document
from kernel.store.conditional import Answer, Insert, InsertAnswer, Remove, RemoveAnswer, Transition
from kernel.store.protocol import Query, Store


class LossyStore:
    """`inner`, but for the next write: `lose_reply` lets it land and loses the answer, `lose_request` the request."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self._lost: list[str] = []
        self.sent: list[Transition | Insert | Remove] = []

    def lose_reply(self) -> None:
        self._lost.append("reply")

    def lose_request(self) -> None:
        self._lost.append("request")

    def apply(self, transition: Transition) -> Answer:
        self._before(transition)
        return self._after(self.inner.apply(transition))

    def insert(self, insert: Insert) -> InsertAnswer:
        self._before(insert)
        return self._after(self.inner.insert(insert))

    def apply_all(self, transitions: Sequence[Transition]) -> list[Answer]:
        return [self.apply(transition) for transition in transitions]

    def insert_all(self, inserts: Sequence[Insert]) -> list[InsertAnswer]:
        return [self.insert(insert) for insert in inserts]

    def remove(self, remove: Remove) -> RemoveAnswer:
        self._before(remove)
        return self._after(self.inner.remove(remove))

    def remove_all(self, removes: Sequence[Remove]) -> list[RemoveAnswer]:
        return [self.remove(remove) for remove in removes]

    def _before(self, write: Transition | Insert | Remove) -> None:
        self.sent.append(write)
        if self._lost[:1] == ["request"]:
            self._lost.pop(0)
            raise OutcomeUnknown(f"{write.name}: the request was lost")

    def _after(self, answer: Any) -> Any:
        if self._lost[:1] == ["reply"]:
            self._lost.pop(0)
            raise OutcomeUnknown("the reply was lost")
        return answer

    def prepare(self) -> None:
        self.inner.prepare()

    def now_ms(self) -> int:
        return self.inner.now_ms()

    def get(self, table: str, key: str) -> Document | None:
        return self.inner.get(table, key)

    def find(self, table: str, column: str, value: str) -> Document | None:
        return self.inner.find(table, column, value)

    def scan(self, query: Query) -> list[tuple[Any, ...]]:
        return self.inner.scan(query)

    def close(self) -> None:
        self.inner.close()
