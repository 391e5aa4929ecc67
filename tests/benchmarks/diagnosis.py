"""How often the diagnosis names the right layers: a scripted engine with each layer injected, alone and in pairs.

    .venv/bin/python tests/benchmarks/diagnosis.py --runs 100

Every combination is diagnosed with as many seeds; a verdict is right when exactly the injected layers are blamed. Exits
with 1 where fewer than 95 of 100 were. The model's seed and every chance event of the engine follow from the seed, so
a run can be repeated.
"""

import argparse
import sys
import time
from itertools import combinations

from tests.support.layered import LAYERS, diagnose, expected

REQUIRED = 0.95


def main() -> int:
    """Print a line per combination; the exit status is returned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, help="seeds of each combination (default %(default)s)")
    parser.add_argument(
        "--layers", help="one combination only, with commas between its layers; 'none' is the clean one"
    )
    arguments = parser.parse_args()
    everything = [(), *((layer,) for layer in LAYERS), *combinations(LAYERS, 2)]
    if arguments.layers:
        everything = [tuple(layer for layer in arguments.layers.split(",") if layer != "none")]
    failed = False
    for layers in everything:
        started, right, wrong = time.monotonic(), 0, []
        for seed in range(arguments.runs):
            blamed = diagnose(layers, seed).blamed
            right += blamed == expected(layers)
            if blamed != expected(layers):
                wrong.append(f"{seed}: {', '.join(sorted(blamed)) or 'nobody'}")
        failed |= right < REQUIRED * arguments.runs
        name, seconds = " and ".join(layers) or "clean", time.monotonic() - started
        sys.stdout.write(f"{name:20} {right} of {arguments.runs} right, {seconds:.0f} s  {'; '.join(wrong[:4])}\n")
        sys.stdout.flush()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
