"""At most once, at full size: how often 10,000 POSTs that meet a fault on their way to the replica are executed.

    python tests/benchmarks/at_most_once.py --faulted 10000

A gateway before two guarded replicas, a proxy before each that resets, cuts, half-closes, delays and trickles what
passes, closes connections as soon as they are accepted, and refuses them for a while (`tests.support.chaos`). The
replicas write down what they execute, the proxies what they were sent; no client asks twice for anything.

Progress goes to standard error, one summary to standard output; the exit is 1 where anything promised was not kept.
"""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.once import Count, at_most_once

_SHOWN = 10


def report(count: Count) -> str:
    """The summary."""
    lines = [
        f"POSTs                            {count.posts:,}, of which a fault met {count.faulted:,}",
        f"executed                         {count.executed:,}",
        f"executed more than once          {len(count.twice)}",
        f"sent more than once              {len(count.sent_twice)}",
        f"overlaps of exclusive ones       {len(count.overlaps)}",
        f"whole answers in spite of faults {len(count.false_success)}",
        f"errors not OpenAI-shaped         {len(count.misshapen)}",
        f"time                             {count.seconds:.0f} s",
        *(f"  fault: {kind:55s} {times:,}" for kind, times in count.struck.most_common()),
        *(f"  outcome: {outcome:53s} {times:,}" for outcome, times in count.outcomes.most_common()),
    ]
    for kind, found in count.broken.items():
        lines += [f"BROKEN {kind}: {one}" for one in found[:_SHOWN]]
    return "\n".join(lines)


def main() -> int:
    """Run it; the exit status is returned."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faulted", type=int, default=10_000, help="POSTs that a fault must have met")
    parser.add_argument("--seed", type=int, default=1, help="of every choice")
    arguments = parser.parse_args()
    # Answers that a fault has cut are left unfinished by intention, and the server tells of each.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="reprise-once-") as folder:
        count = uvloop.run(
            at_most_once(arguments.faulted, arguments.seed, Path(folder), lambda line: sys.stderr.write(line + "\n"))
        )
    sys.stdout.write(report(count) + "\n")
    return 1 if count.broken else 0


if __name__ == "__main__":
    sys.exit(main())
