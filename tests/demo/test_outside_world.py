"""What stands around the live-summary story: the show, the receiver, the model that may hang, the ledger, the chaos."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from asr_demo import model
from asr_demo.composer import summarize
from asr_demo.ledger import Ledger, Refusal
from asr_demo.live_chaos import SEED_MAX, drawn, fresh_seed
from asr_demo.model import Model, ModelBusy
from asr_demo.receiver import Received, Receiver
from asr_demo.shows import Show, Shows
from asr_demo.table_file import TableFile
from tests.support.wait import wait_until

TALK = ("every job is a list of steps", "all of the steps must be done")


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with closing(Receiver(tmp_path)) as receiver:
        yield receiver


def test_a_repeated_delivery_is_recognised_by_its_key(receiver: Receiver) -> None:
    for key in ("w1:1:finalize", "w2:1:finalize", "w1:1:finalize"):
        receiver.deliver(key, f"sub of {key[:2]}", "text", 1)

    assert receiver.received() == Received(deliveries=2, duplicates=0, repeats=1)


def test_a_second_row_for_one_subscription_is_a_duplicate(receiver: Receiver) -> None:
    """Two rounds that both deliver, which must never happen, would be seen."""
    receiver.deliver("w1:1:finalize", "sub-001", "first", 1)
    receiver.deliver("w1:2:finalize", "sub-001", "second", 2)

    assert receiver.received() == Received(deliveries=2, duplicates=1, repeats=0)
    assert receiver.text("sub-001") == "first"
    assert receiver.text("sub-002") is None


def test_a_show_ends_once_and_for_its_own_broadcast(tmp_path: Path) -> None:
    with closing(Shows(tmp_path)) as shows:
        shows.announce(Show("night", "Night", 2, None))
        shows.announce(Show("night", "Other", 3, "/elsewhere.wav"))

        assert shows.read("night") == Show("night", "Night", 2, None)
        assert not shows.end("night", 1, "/old.wav")
        assert shows.end("night", 2, "/new.wav")
        assert not shows.end("night", 2, "/newer.wav")
        assert shows.read("night") == Show("night", "Night", 2, "/new.wav")
        assert shows.read("day") is None


class Call(threading.Thread):
    """One call of the model, as another thread makes it."""

    def __init__(self, folder: Path, request: str) -> None:
        super().__init__()
        self._model = Model(folder)
        self._request = request
        self.answer: str | None = None

    def run(self) -> None:
        self.answer = self._model.summarize(self._request, TALK)


def test_a_call_that_hangs_comes_back_when_it_is_answered(tmp_path: Path) -> None:
    """Meanwhile another one for the same request is refused, and others are answered."""
    model.hang_on(tmp_path, "sub-001:f1-")
    call = Call(tmp_path, "sub-001:f1-ab")
    call.start()
    try:
        wait_until(lambda: model.hung_pid(tmp_path) == os.getpid(), "the call hangs")
        with pytest.raises(ModelBusy):
            Model(tmp_path).summarize("sub-001:f1-ab", TALK)
        assert Model(tmp_path).summarize("sub-001:f2-cd", TALK) == summarize(TALK)
        assert call.answer is None
    finally:
        model.answer(tmp_path)
        call.join()

    assert call.answer == summarize(TALK)
    assert model.hung_pid(tmp_path) is None


@pytest.mark.fault
def test_a_call_whose_process_is_killed_hangs_no_more(tmp_path: Path) -> None:
    """The request is free again: a takeover calls the model anew."""
    model.hang_on(tmp_path, "sub-001:f1-")
    program = (
        "import sys; from pathlib import Path; from asr_demo.model import Model;"
        " Model(Path(sys.argv[1])).summarize('sub-001:f1-', ())"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) as process:
        try:
            wait_until(lambda: model.hung_pid(tmp_path) == process.pid, "the call hangs in the other process")
        finally:
            process.kill()

    assert model.hung_pid(tmp_path) is None
    call = Call(tmp_path, "sub-001:f1-")
    call.start()
    wait_until(lambda: model.hung_pid(tmp_path) == os.getpid(), "the call of the takeover hangs")
    model.answer(tmp_path)
    call.join()
    assert call.answer == summarize(TALK)


def test_refusals_are_kept_in_order(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path)) as ledger:
        late = [Refusal("sub-001", f"f{n}-a", f"f{n + 1}-b", "summary", 12, 1000 + n) for n in (1, 2)]
        for refusal in late:
            ledger.refused(refusal)

        assert ledger.refusals() == late
        assert ledger.entries() == []


def test_a_file_that_many_threads_write_loses_nothing(tmp_path: Path) -> None:
    files = [TableFile(tmp_path / "t.sqlite", "CREATE TABLE IF NOT EXISTS t (n INTEGER)") for _ in range(2)]

    def fill(file: TableFile) -> None:
        for n in range(50):
            file.change("INSERT INTO t VALUES (?)", (n,))

    threads = [threading.Thread(target=fill, args=(file,)) for file in files * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(ZeroDivisionError), files[0].write() as db:
        db.execute("DELETE FROM t")
        raise ZeroDivisionError
    assert files[0].rows("SELECT count(*) FROM t") == [(200,)]
    for file in files:
        file.close()


def test_a_seed_strikes_every_process_and_always_in_the_same_order() -> None:
    assert drawn(7, 2, 1, 8) == drawn(7, 2, 1, 8)
    assert len({tuple(drawn(seed, 2, 1, 8)) for seed in range(20)}) == 20
    for seed in range(50):
        targets = Counter(blow.target for blow in drawn(seed, 3, 2, 100))
        assert {f"worker-{n}" for n in range(3)} | {"dispatcher-0", "dispatcher-1"} <= set(targets)
        assert (targets["asr"], targets["valkey"], targets["supervisor"], targets["wipe"]) == (1, 1, 1, 2)
        assert all(0.5 <= blow.after_s <= 1.5 for blow in drawn(seed, 3, 2, 100))
    assert 0 <= fresh_seed() <= SEED_MAX


def test_the_order_of_a_seed_never_changes() -> None:
    """A seed that somebody wrote down strikes the same way with any later version."""
    assert [blow.target for blow in drawn(2, 2, 1, 6)] == [
        "worker-0", "supervisor", "worker-1", "asr", "worker-1", "dispatcher-0", "wipe", "worker-0", "valkey",
        "worker-1", "wipe",
    ]  # fmt: skip
