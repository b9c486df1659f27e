"""An application that accepts requests, an accepting process that is killed, and a dispatcher that may be hurt.

python -m tests.faults.accepting DATA_DIR REDIS_URL COUNT SEED

forks one accepting process after the other, each of which serves requests until it is killed: from outside at a random
moment, or by itself between two of its writes. Nobody asks again for the request that was under way. It ends when COUNT
requests have been answered, and prints how many and how often it has killed.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from kernel import App, Context, Definition, Objects, Requests, Step, runtime
from kernel.candidates import DueObjects
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.coordination.dispatch_index import DispatchIndex
from kernel.engine import registering
from kernel.intents import Registration, register
from kernel.runtime import roles
from tests.faults.arms import die
from tests.faults.effects import have_effect, noted, ports

GRACE_MS = 200
DIE_AFTER_TAKE, DIED = "die-after-take", "died"
HOLD, HELD = "hold", "held"


class Order(msgspec.Struct, frozen=True):
    """The input of a round: what was ordered."""

    object_id: str
    fencing_token: str
    number: int


@noted
def serve(ctx: Context) -> int:
    have_effect(ctx)
    return int(ctx.input.number)


SERVED = Definition(type="served", input=Order, identity=["object_id"], steps=[Step("only", serve)])
ORDERS = Objects(name="orders", grace_ms=GRACE_MS)
app = App(definitions=[SERVED], dispatch_sources=[ORDERS], ports=ports)


# --- the accepting side -----------------------------------------------------------------------------


def config_of(data_dir: str | Path) -> Config:
    return Config(data_dir=str(data_dir), durability="normal")


def front_door(data_dir: str, redis_url: str | None) -> Requests:
    """What a process that accepts requests works with."""
    config = config_of(data_dir)
    client = runtime.open_client(config, data_dir, redis_url)
    objects = runtime.open_objects(config, data_dir, [ORDERS], SystemClock())[ORDERS.name]
    return Requests(client, objects, SERVED.plan, announce=runtime.open_announcer(config, redis_url))


def accept(data_dir: str, redis_url: str, first: int, fate: tuple[str, int], acks: int) -> None:
    """Serve the requests from `first` on, one after the other, and acknowledge each. `fate` says where this process
    ends itself, and at which request; `outside` leaves that to the other side."""
    requests = front_door(data_dir, redis_url)
    where, number = fate
    client: Any = requests._client
    start = client.start_or_resume

    def started(plan: Any, **options: Any) -> Any:
        dying = options["biz_key"].endswith(f"-{number}")
        if dying and where == "before start":
            die()
        handle = start(plan, **options)
        if dying and where == "after start":
            die()
        return handle

    client.start_or_resume = started
    at = first
    while True:
        object_id = f"order-{at}"
        answer = requests.request({"object_id": object_id, "number": at}, object_id=object_id)
        assert answer.outcome in ("registered", "accepted"), answer
        os.write(acks, b"%d\n" % at)
        at += 1


def nursery(data_dir: str, redis_url: str, count: int, seed: int) -> dict[str, int]:
    """Fork, let live, kill, until `count` requests have been answered."""
    chance = random.Random(seed)
    answered = kills = first = 0
    while answered < count:
        read, write = os.pipe()
        lives = chance.randrange(1, 40)
        fate = (chance.choice(("outside", "outside", "before start", "after start")), first + lives)
        pid = os.fork()
        if pid == 0:
            os.close(read)
            try:
                accept(data_dir, redis_url, first, fate, write)
            finally:
                os._exit(1)
        os.close(write)
        numbers = _acknowledged(read, lives if fate[0] == "outside" else count)
        select.select([], [], [], chance.random() * 0.004)
        os.kill(pid, 9)
        numbers += _acknowledged(read, count)
        os.close(read)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), "an accepting process ended by an error"
        kills += 1
        answered += len(numbers)
        first = max(numbers, default=first) + 2  # the one that was under way is asked for by nobody any more
    return {"answered": answered, "kills": kills}


def _acknowledged(read: int, count: int) -> list[int]:
    """Up to `count` acknowledged numbers; fewer when the process has ended."""
    text = b""
    while text.count(b"\n") < count:
        data = os.read(read, 4096)
        if not data:
            break
        text += data
    return [int(line) for line in text.splitlines()]


# --- a dispatcher that may be hurt --------------------------------------------------------------------


def _mine(folder: Path, wanted: str, taken: str) -> bool:
    """Whether this process is the one that the file `wanted` is meant for: the first that renames it."""
    try:
        (folder / wanted).rename(folder / f".{taken}")
    except FileNotFoundError:
        return False
    (folder / f".{taken}").write_text(str(os.getpid()))
    (folder / f".{taken}").rename(folder / taken)
    return True


def dispatcher(link: runtime.Link) -> int:
    """The product's dispatcher. With a file `die-after-take` it ends itself with a full batch in its hands; with a
    file `hold` it stands still between claim and registration, until its file `held` is gone."""

    class DyingIndex(DispatchIndex):
        def take(self, source: str, count: int, until_ms: int) -> DueObjects:
            taken = super().take(source, count, until_ms)
            if len(taken.object_ids) == count and _mine(link.data_dir, DIE_AFTER_TAKE, DIED):
                die()
            return taken

    def held(*arguments: Any, **options: Any) -> Registration:
        if _mine(link.data_dir, HOLD, HELD):
            while (link.data_dir / HELD).exists():
                threading.Event().wait(0.005)
        return register(*arguments, **options)

    with patch.object(roles, "DispatchIndex", DyingIndex), patch.object(registering, "register", held):
        return runtime.dispatcher(link)


if __name__ == "__main__":
    print(json.dumps(nursery(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
