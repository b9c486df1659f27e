"""`python -m tests.simulation.crash`: the list of all cells; with `--play` each of them is played, too."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.crash.cells import CELLS, listing
from tests.simulation.crash.scenes import SEEDS, play


def main(arguments: list[str] | None = None) -> int:
    """See the README of the folder above."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.crash")
    parser.add_argument("--play", action="store_true", help="play the cells, not only list them")
    parser.add_argument("--boundary", default="", help="only this one, such as 19")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many interleavings of each scene")
    given = parser.parse_args(arguments)
    failed = 0
    if not given.play:
        print("\n".join(line for line in listing() if line.startswith(given.boundary)))
        return 0
    for cell in CELLS:
        if given.boundary not in ("", cell.boundary.number):
            continue
        for scene in cell.scenes:
            for seed in range(SEEDS[0], SEEDS[0] + given.seeds):
                try:
                    play(scene, cell.point, seed)
                except AssertionError as error:
                    failed += 1
                    print(f"{cell.id} {scene.name} seed {seed}: {error}", flush=True)
    print(f"crash matrix: {failed} plays failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
