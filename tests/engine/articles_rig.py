"""The request side in one process: a publisher that can die at any call, and dispatchers that come after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from kernel.business_objects import BusinessObject, BusinessObjects
from kernel.definition import Definition, Step
from kernel.dispatch import DueIntent
from kernel.intents import Registrar
from kernel.objects import Objects
from kernel.records import Document
from kernel.requests import RequestAnswer, Requests
from kernel.store.conditional import Clear, Put, Remove, Transition
from kernel.store.protocol import Store
from tests.support.engine_runner import Killed
from tests.support.outbox_rig import SOURCE, OutboxRig, Watched

ARTICLES = Objects(name=SOURCE, client_id="request_id", round_fields=("error", "result"), grace_ms=0)
SUMMARY = Definition(type="job", steps=[Step("only", lambda ctx: "done")])


class ArticlesRig(OutboxRig):
    """One publisher on an `OutboxRig`; `client` and `objects` of it are watched, and a dead one calls nothing."""

    definitions = (SUMMARY,)

    def __init__(self, objects_store: Store | None = None, *, definition: Definition = SUMMARY, **more: Any) -> None:
        self.definitions = (definition,)
        super().__init__(objects_store, **{"declaration": ARTICLES, **more})
        self.announced: list[tuple[str, str, int]] = []
        self.publisher()

    def publisher(self, **options: Any) -> Requests:
        """A fresh publisher process: the one before may be dead."""
        self.asked_client, self.asked_objects = Watched(self.client), Watched(self.objects)
        self.calls: list[str] = []
        for watched, who in ((self.asked_client, "client"), (self.asked_objects, "objects")):
            watched.before = self._noting(who)
        self.requests = Requests(
            cast(Registrar, self.asked_client),
            cast(BusinessObjects, self.asked_objects),
            self.definitions[0].plan,
            **{"announce": self._announce, "ids": self.ids, **options},
        )
        return self.requests

    def request(self, object_id: str = "k", **more: Any) -> RequestAnswer:
        options = {"input": {"object_id": object_id, "stream": True}, **more}
        return self.requests.request(object_id=object_id, **options)

    def writes(self) -> list[str]:
        """What the publisher called, without its reads."""
        return [call for call in self.calls if call not in ("objects.get", "objects.read", "objects.by_client")]

    def die_at(self, call: str, *, after: bool) -> None:
        """The publisher's process ends before or after this call; the call itself takes effect only in the latter."""
        who, _, name = call.partition(".")
        watched = self.asked_client if who == "client" else self.asked_objects

        def kill(called: str, *_: Any) -> None:
            if called == name:
                self.asked_client.dead = self.asked_objects.dead = True
                raise Killed

        if after:
            watched.after = kill
        else:
            watched.before = kill

    def meanwhile(self, call: str, do: Callable[[], object]) -> None:
        """Let `do` happen once, right before the publisher makes this call."""
        who, _, name = call.partition(".")
        watched = self.asked_client if who == "client" else self.asked_objects
        noting, left = watched.before, [do]

        def before(called: str, args: tuple[Any, ...]) -> None:
            noting(called, args)
            if called == name and left:
                left.pop()()

        watched.before = before

    def row(self, object_id: str = "k") -> Document:
        document = self.objects_store.get(SOURCE, object_id)
        assert document is not None, f"{object_id} does not exist"
        return document

    def object(self, object_id: str = "k") -> BusinessObject:
        found = self.objects.get(object_id)
        assert found is not None, f"{object_id} does not exist"
        return found

    def token(self, object_id: str = "k") -> str:
        found = self.object(object_id).fencing_token
        assert found is not None
        return found

    def by_hand(self, *changes: Put | Clear, object_id: str = "k") -> None:
        """What another program does to the object."""
        self.objects_store.apply(Transition("by_hand", SOURCE, object_id, (), changes))

    def delete(self, object_id: str = "k") -> None:
        self.objects_store.remove(Remove("delete", SOURCE, object_id, ()))

    def failed_round(self, object_id: str = "k") -> str:
        """An object whose first round was registered, ran, and failed on both sides; that round's token."""
        assert self.request(object_id).outcome == "registered"
        token = self.token(object_id)
        self.end_instance("failed", object_id)
        self.fail_object(object_id, token)
        return token

    def _announce(self, source: str, object_id: str, due_ms: int) -> None:
        self.announced.append((source, object_id, due_ms))
        self.calls.append("announce")
        self.index.add(source, [DueIntent(object_id, due_ms)])

    def _noting(self, who: str) -> Callable[[str, tuple[Any, ...]], None]:
        return lambda name, args: self.calls.append(f"{who}.{name}")
