"""10,000 clients that leave in every phase of their request, and what they leave behind in the gateway.

    python tests/benchmarks/disconnects.py --clients 10000

Two gateways as processes, one before a guarded upstream and one before a stock one; clients in both admissions leave
while they are queued, granted, just sent, before the headers, in the middle of a stream and at the end. Afterwards:
leases (`/readyz` and the guard), sockets as the upstream counts them, the gateway's descriptors and memory, and the
next 50 requests. From leaving to the upstream's notice is measured where the upstream surely works for the client.

Progress goes to standard error, one summary to standard output; the exit is 1 where a promise or a figure of issue and
design (250 ms, 5 s, 5 descriptors, 20 MiB) was not kept.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.exodus import Exodus, exodus


def report(result: Exodus) -> str:
    """The summary."""
    left = result.left
    noticed = ", ".join(
        f"{name} {result.noticed(part) * 1e3:.1f} ms" for name, part in (("p50", 0.5), ("p99", 0.99), ("most", 1.0))
    )
    lines = [
        f"clients that left                {left.total:,}",
        *(f"  {phase:30s} {clients:,}" for phase, clients in left.phases.items()),
        f"executed for nobody              {len(left.for_nobody)}",
        f"upstream noticed                 {noticed} (n = {len(left.seconds):,})",
    ]
    for name, cost in result.costs.items():
        before, after = cost.before, cost.after
        grown = (after.memory - before.memory) / 2**20
        lines += [
            f"before a {name} upstream",
            f"  leases left behind             {cost.leases}",
            f"  sockets at the upstream        {before.sockets}, and {after.sockets} after {cost.sockets_after:.1f} s",
            f"  file descriptors               {before.descriptors}, then {after.descriptors}",
            f"  resident memory                {before.memory / 2**20:.1f} MiB, then {grown:+.1f} MiB",
            f"  the next requests              {dict(cost.next_ones)}",
            f"  overlaps of exclusive ones     {cost.overlaps}",
        ]
    lines.append(f"time                             {result.seconds:.0f} s")
    return "\n".join([*lines, *(f"BROKEN {one}" for one in (*result.broken, *result.over_budget))])


def main() -> int:
    """Run it; the exit status is returned."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="of every choice")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reprise-disconnects-") as folder:
        result = uvloop.run(
            exodus(arguments.clients, arguments.seed, Path(folder), lambda line: sys.stderr.write(line + "\n"))
        )
    sys.stdout.write(report(result) + "\n")
    return 1 if result.broken or result.over_budget else 0


if __name__ == "__main__":
    sys.exit(main())
