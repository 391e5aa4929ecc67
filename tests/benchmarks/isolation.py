"""Isolation under faults, at full size: no exclusive request runs beside another, whatever is killed, frozen or cut.

    python tests/benchmarks/isolation.py --exclusive 100000
    python tests/benchmarks/isolation.py --engine-url http://127.0.0.1:8001 --exclusive 500

Three gateways stand as processes before the same guarded upstreams. Clients ask through them, isolated and not, others
go past them, many leave at any moment; gateways are killed and frozen, upstreams killed and stopped, and all start
again. Then the upstreams' own logs are searched for whatever ran beside an exclusive request (`tests.support.intervals`
shares no code with the gate). ``--stock`` leaves the guard away, and shows that what must not be would be found.

With ``--engine-url`` the upstream is a real vLLM with the guard, which is not restarted: its guard's interval log and
vLLM's own count of running requests are the witnesses (`tests.support.witness`). REPRISE_GUARD_KEY must hold its key,
so start it with one: ``REPRISE_GUARD_KEY=... ./deploy/up``.

Progress goes to standard error, one summary to standard output; the exit is 1 where anything promised was not kept.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.engine_storm import EngineAftermath, engine_storm
from tests.support.storm import Aftermath, Weather, storm

_SHOWN = 10


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--exclusive", type=int, default=100_000, help="exclusive admissions to complete")
    parser.add_argument("--rounds", type=int, default=3, help="how often every kind of fault strikes at least")
    parser.add_argument("--seed", type=int, default=1, help="of every choice that the storm makes")
    parser.add_argument("--gateways", type=int, default=3)
    parser.add_argument("--upstreams", type=int, default=2)
    parser.add_argument("--stock", action="store_true", help="without the guard; overlaps are expected then")
    parser.add_argument("--engine-url", help="a real vLLM with the guard on this machine")
    parser.add_argument("--model", default="smollm2", help="what the real vLLM serves")
    chosen = parser.parse_args()
    if chosen.engine_url is not None and not os.environ.get("REPRISE_GUARD_KEY"):
        parser.error("--engine-url needs the engine's guard key in REPRISE_GUARD_KEY")
    return chosen


async def run(chosen: argparse.Namespace) -> Aftermath | EngineAftermath:
    """The storm that was asked for."""
    with tempfile.TemporaryDirectory(prefix="reprise-isolation-") as folder:
        if chosen.engine_url is None:
            weather = Weather(
                exclusive=chosen.exclusive,
                rounds=chosen.rounds,
                seed=chosen.seed,
                gateways=chosen.gateways,
                upstreams=chosen.upstreams,
                passers_by=0 if chosen.stock else 8,  # a gateway's own gate never finds an upstream empty beside them
                stock=chosen.stock,
            )
            return await storm(weather, Path(folder), _say)
        gentle = Weather(
            exclusive=chosen.exclusive,
            rounds=chosen.rounds,
            seed=chosen.seed,
            gateways=chosen.gateways,
            visitors=9,
            passers_by=3,
            calm=(2.0, 8.0),
            frozen=(0.2, 3.0),
        )
        key = os.environ["REPRISE_GUARD_KEY"]
        return await engine_storm(gentle, chosen.engine_url, key, chosen.model, Path(folder), _say)


def report(after: Aftermath | EngineAftermath) -> str:
    """The summary."""
    broken = after.broken
    faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(after.faults.items()))
    outcomes = ", ".join(f"{outcome} {count:,}" for outcome, count in after.outcomes.most_common())
    lines = [
        f"exclusive admissions completed  {after.exclusive:,}",
        f"shared executions               {after.shared:,}, up to {after.most_at_once} at once",
        f"overlaps                        {len(after.overlaps)}",
    ]
    if isinstance(after, Aftermath):
        lines += [
            f"exclusive ones cut short        {after.cut:,}",
            f"executed twice                  {len(after.twice)}",
            f"executed for nobody             {len(after.for_nobody)}",
            f"answered, not executed          {len(after.unwitnessed)}",
        ]
    else:
        lines += [
            f"vLLM's gauge above 1            {len(after.contradicted)} of {after.counted:,} samples inside",
            f"peak above 1                    {len(after.not_alone)}",
            f"clocks compared to              {after.zero_known_to / 1e3:.1f} ms",
        ]
    lines += [
        f"leases left behind              {len(after.leaked)}",
        f"wrong or misshapen answers      {len(after.wrong)}",
        f"faults                          {faults}",
        f"outcomes                        {outcomes}",
        f"time                            {after.seconds:.0f} s",
    ]
    for kind, found in broken.items():
        lines += [f"BROKEN {kind}: {one}" for one in found[:_SHOWN]]
    return "\n".join(lines)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def main() -> int:
    """Run it; the exit status is returned."""
    after = uvloop.run(run(arguments()))
    sys.stdout.write(report(after) + "\n")
    return 1 if after.broken else 0


if __name__ == "__main__":
    sys.exit(main())
