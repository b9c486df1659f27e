"""A program whose children publish, each one call on ports that may be hurt, and tell what they were told.

python -m tests.faults.publisher DATA_DIR REDIS_URL APP

reads a call a line in JSON, `[what, words]`, makes it in a process of its own that is forked for it, and prints what
became of that process. `Publisher` is the test's side.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kernel import App, KernelError, Requests
from kernel.clock import SystemClock
from kernel.config import Config
from kernel.runtime import opening
from tests.faults.crash_ports import armed_ports
from tests.support.program import Program


class Said(msgspec.Struct, frozen=True):
    """What a publisher was told, or the code of the error; neither, where it was killed."""

    killed: bool
    answer: dict[str, Any] | None = None
    error: str = ""


class Publisher:
    """Publishers of one tree, one after the other."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def start(self, type_: str, biz_key: str, input: Any, priority: str = "async") -> Said:
        """start_or_resume: `workflow_id`, `branch`."""
        value = msgspec.to_builtins(input)
        return self._say("start", {"type_": type_, "biz_key": biz_key, "input": value, "priority": priority})

    def request(self, object_id: str, **input: Any) -> Said:
        """A request for the first kind of object of the App and its first Definition: a RequestAnswer."""
        return self._say("request", {"object_id": object_id, "input": {"object_id": object_id, **input}})

    def supersede(self, workflow_id: str) -> Said:
        """`changed`, `status`."""
        return self._say("supersede", {"workflow_id": workflow_id})

    def _say(self, what: str, words: dict[str, Any]) -> Said:
        self._program.send([what, words])
        return msgspec.convert(self._program.receive(), Said)


@contextmanager
def publishers(data_dir: Path, redis_url: str, app: str) -> Iterator[Publisher]:
    """A program for the publishers of a tree; it ends with the block."""
    with Program("tests.faults.publisher", str(data_dir), redis_url, app) as program:
        yield Publisher(program)


# --- the program --------------------------------------------------------------------------------------


class _Publishing:
    """One process that publishes."""

    def __init__(self, config: Config, redis_url: str, app: App) -> None:
        self._config = config
        self._redis_url = redis_url
        self._app = app

    def start(self, type_: str, biz_key: str, input: Any, priority: str) -> dict[str, Any]:
        definition = self._app.definition(type_)
        value = msgspec.convert(input, definition.plan.input)
        with opening.open_client(self._config, self._config.data_dir, self._redis_url) as client:
            handle = client.start_or_resume(definition.plan, biz_key=biz_key, input=value, priority=priority)
            return {"workflow_id": handle.workflow_id, "branch": handle.branch}

    def request(self, object_id: str, input: dict[str, Any]) -> dict[str, Any]:
        config, declared = self._config, self._app.objects[0]
        plan = next(iter(self._app.definitions.values())).plan
        opened = opening.open_objects(config, config.data_dir, [declared], SystemClock())[declared.name]
        with closing(opened), opening.open_client(config, config.data_dir, self._redis_url) as client:
            answer = Requests(client, opened, plan).request(input, object_id=object_id)
            return {"outcome": answer.outcome, "created": answer.created, "new_round": answer.new_round}

    def supersede(self, workflow_id: str) -> dict[str, Any]:
        with opening.open_client(self._config, self._config.data_dir, self._redis_url) as client:
            done = client.supersede(workflow_id)
            return {"changed": done.changed, "status": done.status}


def forked(call: Callable[[], dict[str, Any]]) -> Said:
    """Make the call in a process of its own, which nothing of this one but its memory reaches."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            said = Said(killed=False, answer=call())
        except KernelError as error:
            said = Said(killed=False, error=error.code)
        except BaseException as error:
            said = Said(killed=False, error=f"{type(error).__name__}: {error}")
        os.write(write, msgspec.json.encode(said))
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        return Said(killed=True)
    return msgspec.json.decode(text, type=Said)


def main(data_dir: str, redis_url: str, app_path: str) -> None:
    folder = Path(data_dir)
    config = Config(data_dir=data_dir, durability="normal", app=app_path)
    publishing = _Publishing(config, redis_url, opening.load_app(app_path))
    for line in sys.stdin:
        what, words = json.loads(line)

        def call(what: str = what, words: dict[str, Any] = words) -> dict[str, Any]:
            with armed_ports(folder, "publisher"):
                done: dict[str, Any] = getattr(publishing, what)(**words)
                return done

        sys.stdout.write(msgspec.json.encode(forked(call)).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
