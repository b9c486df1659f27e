"""The processes that make work and look at it from outside; the run kills them and starts others in their place.

python -m tests.chaos.producers ROLE DATA_DIR BIRTH SEED RATE LISTENERS

`starter` starts workflows, `signaller` delivers what waits are waiting for, `accepter` accepts business objects,
`operator` replays what failed and ends some by hand, `reader` follows streams. A killed starter or accepter leaves the
call that was under way to its fate; signals are asked for until they were told, by whoever is born next.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from kernel import TERMINAL, KernelError, Signal, workflow_id_for
from kernel.config import Config
from kernel.runtime import Publisher, embedded_redis_url, open_publisher
from kernel.stream_events import FRAME, RESET
from kernel.stream_events import TERMINAL as END
from tests.chaos import app
from tests.chaos.app import GENERATIONS, LIMITED, ORDERS, SERVED, SHOWN, Story, Task, listener_key
from tests.chaos.words import FRAMES, WORDS, Seen, Word, Writing
from tests.support.json_lines import JsonLines

STOP, HOLD = "stop-{}", "hold"
"""A file of this name ends the producers of a role; as long as a file `hold` is there, nobody starts anything."""
TYPES = {d.type: d for d in app.app.definitions.values()}
MIX = (
    *("chain", "chain", "wave", "naps", "waits", "waits", "waits", "polls", "pages"),
    *("tries", "fails", "cut", "limited", "limited", "shown"),
)
BATCH, RUSH = 5, 15
"""Started at once; of those that want a place of the limited resource so many that both limits bind."""
STORY_SHARE, LARGE_SHARE, LARGE = 1 / 40, 1 / 4, 500
"""Of the batches so many, and the second one of each birth, are a story with its listeners; of the stories so many have
LARGE listeners, but for those of the first birth: a run of seconds ends with it."""
_LOOK_S = 0.05
_READERS = 3


def is_ghost(number: int) -> bool:
    """Whether nobody ever rings for the waiting workflow of that number: it waits for what truly does not happen."""
    return number % 25 == 7


class Desk:
    """What every producer works with. The embedded Redis changes its address with each new supervisor."""

    def __init__(self, role: str, folder: Path, birth: int, seed: int) -> None:
        self.role = role
        self.folder = folder
        self.birth = birth
        self.chance = random.Random(f"{seed} {role} {birth}")
        self.words = Writing(folder)
        self._config = Config(data_dir=str(folder), durability="normal")
        self._publisher: Publisher | None = None
        self._url: str | None = None

    def publisher(self) -> Publisher:
        """The one before stays open: another thread may be following a stream through it."""
        url = embedded_redis_url(self.folder)
        if self._publisher is None or url != self._url:
            self._publisher = open_publisher(self._config, self.folder, url, objects=[ORDERS])
            self._url = url
        return self._publisher

    @property
    def stopped(self) -> bool:
        return (self.folder / STOP.format(self.role)).exists()

    def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def pace(self, period_s: float) -> Iterator[int]:
        """0, 1, 2, … about every `period_s`, until the role is stopped."""
        count = 0
        while not self.stopped:
            if not (self.folder / HOLD).exists():
                yield count
                count += 1
            self.pause(period_s * self.chance.uniform(0.5, 1.5))


# --- starting -------------------------------------------------------------------------------------------


def starter(desk: Desk, rate: float, listeners: int) -> None:
    for count in desk.pace(BATCH / rate):
        if desk.chance.random() < STORY_SHARE or count == 1:
            large = desk.birth > 1 and desk.chance.random() < LARGE_SHARE
            _story(desk, count, max(LARGE, listeners) if large else listeners)
            continue
        type_ = desk.chance.choice(MIX)
        size = RUSH if type_ == LIMITED.type else BATCH
        numbers = [count * RUSH + n for n in range(size)]
        requests = [(f"{type_}:{desk.birth}:{number}", Task(number)) for number in numbers]
        if type_ in ("waits", "polls") and desk.chance.random() < 0.5:  # signals that are earlier than their workflow
            for (key, _), number in zip(requests, numbers, strict=True):
                if not is_ghost(number):
                    _deliver(desk, [_bell(key, 1)])
        _start(desk, type_, requests, numbers)


def _start(desk: Desk, type_: str, requests: list[tuple[str, Any]], numbers: list[int]) -> bool:
    """Ask once; whether it was told. What a store does not answer for is left to its fate, as by a death."""
    words = [
        Word(what="start", key=key, of=type_, number=number) for (key, _), number in zip(requests, numbers, strict=True)
    ]
    desk.words.asked(*words)
    try:
        desk.publisher().client.start_many(TYPES[type_], requests, priority=desk.chance.randrange(4))
    except KernelError as error:
        print(f"{desk.role}: {error}", file=sys.stderr)
        return False
    desk.words.told(*words)
    return True


def _story(desk: Desk, count: int, listeners: int) -> None:
    """Half of the listeners come before the story and half with its end already told."""
    story = Story(f"story-{desk.birth}-{count}", listeners)
    keys = [(listener_key(story.name, number), story) for number in range(listeners)]
    half = len(keys) // 2
    _start(desk, "listens", keys[:half], list(range(half)))
    _start(desk, "story", [(story.name, story)], [count])
    _start(desk, "listens", keys[half:], list(range(half, len(keys))))


# --- signals --------------------------------------------------------------------------------------------


def _bell(key: str, generation: int) -> Signal:
    return Signal(
        signal_id=f"bell:{key}:{generation}",
        workflow_id=workflow_id_for(key),
        signal_type="bell",
        wait_key=key,
        generation=generation,
    )


def _deliver(desk: Desk, signals: list[Signal]) -> None:
    """Ask until it is told: that is a producer's duty."""
    if not signals:
        return
    words = [Word(what="signal", key=s.signal_id, of=s.workflow_id, generation=s.generation) for s in signals]
    desk.words.asked(*words)
    while True:
        try:
            desk.publisher().client.deliver_signals(signals)
            break
        except KernelError as error:
            print(f"{desk.role}: {error}", file=sys.stderr)
            desk.pause(_LOOK_S)
    desk.words.told(*words)


def signaller(desk: Desk) -> None:
    """Rings for every waiting workflow that was told to have started: a wrong generation, the right ones, some twice;
    what an earlier birth has been told is left out."""
    reading, told, open_keys = JsonLines(desk.folder / WORDS, Word), set[str](), deque[str]()
    while True:
        stopped = desk.stopped
        for word in reading.more():
            if word.told and word.what == "signal":
                told.add(word.key)
            elif word.told and word.what == "start" and word.of in ("waits", "polls"):
                (open_keys.append if not is_ghost(word.number) else _no_bell(desk))(word.key)
        if not open_keys:
            if stopped:
                return
            desk.pause(_LOOK_S)
            continue
        keys = [open_keys.popleft() for _ in range(min(BATCH, len(open_keys)))]
        bells = [_bell(key, generation) for key in keys for generation in (9, *range(1, GENERATIONS + 1))]
        bells = [bell for bell in bells if bell.signal_id not in told]
        again = [bell for bell in bells if desk.chance.random() < 0.2]
        desk.chance.shuffle(bells)
        alone = desk.chance.randrange(len(bells) + 1)  # so many one by one, the rest at once
        for bell in bells[:alone]:
            _deliver(desk, [bell])
        _deliver(desk, bells[alone:])
        _deliver(desk, again)


def _no_bell(desk: Desk) -> Callable[[str], None]:
    return lambda key: _deliver(desk, [_bell(key, 9)])


# --- business objects, operators, readers ---------------------------------------------------------------


def accepter(desk: Desk, rate: float) -> None:
    """Accepts objects; later asks once more for some of them, which starts those over that have failed."""
    asked: list[tuple[str, int]] = []
    for count in desk.pace(1 / rate):
        object_id, number = f"order-{desk.birth}-{count}", count
        if asked and desk.chance.random() < 0.4:
            object_id, number = desk.chance.choice(asked[-30:])
        word = Word(what="object", key=object_id, number=number)
        desk.words.asked(word)
        try:
            requests = desk.publisher().requests(ORDERS, SERVED)
            answer = requests.request({"object_id": object_id, "number": number}, object_id=object_id)
        except KernelError as error:
            print(f"{desk.role}: {error}", file=sys.stderr)
            continue
        desk.words.told(msgspec.structs.replace(word, note=answer.outcome))
        asked.append((object_id, number))


def operator(desk: Desk) -> None:
    """Replays workflows that have failed, and supersedes some that sleep: by a thread of its own each."""
    reading, failing, cutting = JsonLines(desk.folder / WORDS, Word), deque[Word](), deque[Word]()
    done_before = {
        word.key for word in JsonLines(desk.folder / WORDS, Word).more() if word.told and word.what == "supersede"
    }
    ended = threading.Event()

    def replaying() -> None:
        while not ended.wait(_LOOK_S):
            for _ in range(len(failing)):
                word = failing.popleft()
                instance = desk.publisher().client.get(workflow_id_for(word.key))
                assert instance is not None, f"{word.key} was told to have started and does not exist"
                if instance.status not in TERMINAL:
                    failing.append(word)
                if instance.status != "failed":
                    continue
                asked = Word(what="replay", key=word.key)
                desk.words.asked(asked)
                with suppress(KernelError):
                    handle = desk.publisher().client.start_or_resume(
                        app.FAILS, biz_key=word.key, input=Task(word.number)
                    )
                    desk.words.told(msgspec.structs.replace(asked, note=handle.branch))

    thread = threading.Thread(target=replaying, name="replaying", daemon=True)
    thread.start()
    while not desk.stopped:
        for word in reading.more():
            if word.told and word.what == "start" and word.of in ("fails", "cut"):
                (failing if word.of == "fails" else cutting).append(word)
        for _ in range(len(cutting)):
            word = cutting.popleft()
            if word.number % 2 and word.key not in done_before:
                asked = Word(what="supersede", key=word.key)
                desk.words.asked(asked)
                with suppress(KernelError):
                    done = desk.publisher().client.supersede(workflow_id_for(word.key))
                    desk.words.told(
                        msgspec.structs.replace(asked, note="changed" if done.changed else str(done.status))
                    )
        desk.pause(_LOOK_S)
    ended.set()
    thread.join()


def reader(desk: Desk) -> None:
    """Follows every third stream from wherever it stands, a few at a time."""
    reading, frames, following = (
        JsonLines(desk.folder / WORDS, Word),
        Writing(desk.folder, FRAMES),
        list[threading.Thread](),
    )

    def follow(key: str) -> None:
        me, wanted = f"{desk.birth}:{key}", workflow_id_for(key)
        try:
            for event in desk.publisher().client.follow(wanted):
                if event.event not in (FRAME, RESET, END):
                    continue
                data = event.frame.data if event.event == FRAME else {}
                at = event.position
                where = {} if at is None else {"generation": at.generation, "offset": at.offset}
                shown = {name: data[name] for name in ("run", "attempt") if name in data}
                frames.write([Seen(reader=me, workflow_id=wanted, event=event.event, **where, **shown)])
        except KernelError as error:
            print(f"{desk.role}: {error}", file=sys.stderr)

    reading.more()  # what is old has been followed by an earlier birth
    while not desk.stopped:
        following = [thread for thread in following if thread.is_alive()]
        for word in reading.more():
            if word.told and word.what == "start" and word.of == SHOWN.type and len(following) < _READERS:
                following.append(threading.Thread(target=follow, args=(word.key,), daemon=True))
                following[-1].start()
        desk.pause(_LOOK_S)


ROLES: dict[str, Callable[..., None]] = {
    "starter": starter,
    "signaller": lambda desk, *_: signaller(desk),
    "accepter": lambda desk, rate, _: accepter(desk, rate / 4),
    "operator": lambda desk, *_: operator(desk),
    "reader": lambda desk, *_: reader(desk),
}


def _hang_on() -> None:
    """stdin is the lifeline: its end is that of the run."""
    os.read(0, 1)  # not sys.stdin, whose lock an ending interpreter would want
    os._exit(0)


def main(role: str, data_dir: str, birth: str, seed: str, rate: str, listeners: str) -> None:
    threading.Thread(target=_hang_on, name="lifeline", daemon=True).start()
    ROLES[role](Desk(role, Path(data_dir), int(birth), int(seed)), float(rate), int(listeners))


if __name__ == "__main__":
    main(*sys.argv[1:])
