"""Second-order cells: 200 random pairs of a first fault, and a blow to the process that does the recovery."""

from __future__ import annotations

import pytest

from tests.simulation.crash.pairs import PAIRS, SEED, pairs
from tests.simulation.crash.scenes import play_twice

CHUNKS = 8
TRIED_MAX = 60
"""Where nothing is left to be recovered, nobody can be hit: such a pair is none, and the next one is drawn."""


@pytest.mark.req("flt-process-exit", "flt-random")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_process_that_recovers_is_hit_as_well(chunk: int) -> None:
    wanted, seed, hit, tried = PAIRS // CHUNKS, SEED + chunk, 0, 0
    print(f"second-order pairs of seed {seed}:")
    for pair in pairs(TRIED_MAX, seed):
        if hit == wanted:
            break
        tried += 1
        print(pair)
        hit += play_twice(pair.scene, pair.first, pair.after, pair.second, 1_000 * seed + pair.number)

    assert hit == wanted, f"{hit} of {tried} pairs have hit twice"


def test_pairs_are_those_of_their_seed() -> None:
    first, again, other = (list(map(str, pairs(50, seed))) for seed in (61, 61, 62))

    assert first == again != other
    assert len(set(first)) == 50
    assert str(next(pairs(1, 61))) == first[0]
