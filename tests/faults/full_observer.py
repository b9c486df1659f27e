"""What noting an event costs while the store of observations hangs and the queue runs full (L12), in a process alone.

python -m tests.faults.full_observer FOLDER [--shape words] [--input-bytes 54000] [--queue 10000] [--threads 1]

It opens what a worker opens (`open_observer`), with the write lock of the store in somebody else's hand, and notes
events as the engine does: after each commit, with the record that the store returned. One line of JSON says what came
out.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from kernel.clock import SystemClock
from kernel.codec import encode
from kernel.config import Config
from kernel.engine.telling import tell
from kernel.engine.threads import ThreadRunner
from kernel.records import Instance, StepRecord
from kernel.runtime.observer import OBSERVE_FILE, Observing, open_observer
from tests.support.observations import record

SHAPES = ("words", "numbers", "text", "bytes")
STEPS = 4
WARM_UP = 500


def input_of(shape: str, size: int) -> bytes:
    """An input of about that size: one long text, one of bytes, a list of words, a list of small numbers."""
    fillings: dict[str, Any] = {
        "text": "x" * size,
        "bytes": b"x" * size,
        "words": ["word"] * (size // 5),
        "numbers": list(range(100)) * (size // 100),
    }
    return encode({"fencing_token": "round-1", "payload": fillings[shape]}, "input", 10 * size + 1000)


def instance_of(number: int, data: bytes) -> Instance:
    """A record as a commit leaves it: nothing of it is another record's."""
    steps = tuple(StepRecord(name=f"step{n}", status="running", attempt=1, started_time=1) for n in range(STEPS))
    output = encode({"result": "y" * 200}, "output", 1000)
    return record(f"key:{number}", 5, steps=steps, input=bytes(bytearray(data)), outputs={"step0": output})


class Notes:
    """Times of `tell` in ns, (wall, CPU of the thread), before the queue was full and then."""

    def __init__(self, seen: Observing, queue: int, data: bytes) -> None:
        self._seen = seen
        self._queue = queue
        self._data = data
        self.filling: list[tuple[int, int]] = []
        self.full: list[tuple[int, int]] = []

    def take(self, first: int, count: int) -> None:
        """Note `count` events of workflows `first` and following."""
        observer = self._seen.observer
        for number in range(first, first + count):
            instance = instance_of(number, self._data)
            is_full = self.counters()["observation_queue"] >= self._queue
            began_ns, began_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            tell(observer, "step.completed", instance=instance, step=number % STEPS)
            took = (time.perf_counter_ns() - began_ns, time.thread_time_ns() - began_cpu_ns)
            (self.full if is_full else self.filling).append(took)

    def take_side_by_side(self, first: int, count: int, threads: int) -> None:
        share = count // threads
        notes = [threading.Thread(target=self.take, args=(first + at * share, share)) for at in range(threads)]
        for thread in notes:
            thread.start()
        for thread in notes:
            thread.join()

    def counters(self) -> dict[str, int]:
        return dict(self._seen.added_to({"counters": {}, "loops": {}})["counters"])


def percentiles(times: list[tuple[int, int]]) -> dict[str, float]:
    """In µs, by nearest rank."""
    found: dict[str, float] = {"n": len(times)}
    for kind, column in (("wall", 0), ("cpu", 1)):
        ranked = sorted(took[column] / 1000 for took in times)
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            found[f"{kind}_{name}_us"] = ranked[int(part * len(ranked))]
    return found


def measure(folder: Path, *, shape: str, input_bytes: int, queue: int, threads: int) -> dict[str, Any]:
    """Fill the queue, then note twice as many; memory is looked at when the queue has been full for half of these."""
    clock = SystemClock()
    seen = open_observer(Config(observe_queue=queue), folder, clock, ThreadRunner(clock), clock.wall_ms)
    notes = Notes(seen, queue, input_of(shape, input_bytes))
    lock_path = folder / f"{OBSERVE_FILE}-lock"
    lock_path.touch(mode=0o600)
    with open(lock_path, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        notes.take(0, WARM_UP)
        notes.filling.clear()
        notes.take_side_by_side(WARM_UP, 2 * queue, threads)
        memory = psutil.Process().memory_info().rss
        notes.take_side_by_side(3 * queue, queue, threads)
        return {
            "filling": percentiles(notes.filling),
            "full": percentiles(notes.full),
            "dropped": notes.counters()["observation_dropped"],
            "accepted": notes.counters()["observation_queue"],
            "grown_bytes": psutil.Process().memory_info().rss - memory,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="words")
    parser.add_argument("--input-bytes", type=int, default=54_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--queue", type=int, default=10_000)
    print(json.dumps(measure(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
