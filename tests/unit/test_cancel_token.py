"""The cooperative stop sign: fired once, from any thread, with the first reason."""

from __future__ import annotations

import threading

import pytest

from kernel.cancel import CancelToken


@pytest.mark.req("act-pass-context")
def test_a_token_fires_once_and_the_first_reason_stands() -> None:
    token = CancelToken()
    heard: list[str] = []
    token.on_fire(lambda: heard.append(str(token.reason)))
    assert (token.fired, token.wait(0), token.reason) == (False, False, None)

    assert token.fire("timeout") is True
    assert token.fire("fenced") is False
    token.on_fire(lambda: heard.append("late"))

    assert (token.fired, token.wait(0), token.reason) == (True, True, "timeout")
    assert heard == ["timeout", "late"]


def test_of_many_threads_one_fires_and_every_callback_runs_once() -> None:
    for _ in range(50):
        token = CancelToken()
        heard: list[int] = []
        barrier = threading.Barrier(8)

        def work(
            k: int, token: CancelToken = token, heard: list[int] = heard, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait(10)
            if k % 2:
                token.on_fire(lambda: heard.append(k))
            else:
                token.fire("claim_lost")

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)

        assert sorted(heard) == [1, 3, 5, 7]


@pytest.mark.req("act-pass-context")
def test_a_waiting_activity_is_woken_at_once() -> None:
    token = CancelToken()
    threading.Timer(0.05, token.fire, args=("timeout",)).start()

    assert token.wait(10) is True
