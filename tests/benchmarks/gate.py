"""What the gate costs: microseconds per operation, and memory per waiting ticket.

    python tests/benchmarks/gate.py

An operation is one `enqueue` or one `release`, whatever it grants. Nothing is asserted.
"""

import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from app.scheduling.gate import Gate, GatePolicy
from app.scheduling.ticket import Admission, Ticket

OPERATIONS = 200_000
QUEUED = 10_000
WIDE = GatePolicy(most_shared=2 * QUEUED, most_exclusive=2 * QUEUED)


def nothing() -> None:
    """Nobody waits for these tickets."""


def passing(exclusive_every: int, keys: int) -> float:
    """Seconds for a stream of tickets of which up to 32 are there at once."""
    gate, live = Gate(WIDE), list[Ticket]()
    names = cycle(str(number) for number in range(keys))
    began = time.perf_counter()
    for number in range(OPERATIONS // 2):
        exclusive = exclusive_every and number % exclusive_every == 0
        admission = Admission.EXCLUSIVE if exclusive else Admission.SHARED
        live.append(gate.enqueue(admission, nothing, key=next(names)))
        if len(live) > 32:
            gate.release(live.pop(0))
    for ticket in live:
        gate.release(ticket)
    return time.perf_counter() - began


def queue(gate: Gate, keys: int) -> list[Ticket]:
    """Ten thousand tickets that wait, every second one exclusive."""
    admissions = cycle((Admission.SHARED, Admission.EXCLUSIVE))
    return [gate.enqueue(next(admissions), nothing, key=str(number % keys)) for number in range(QUEUED)]


def deep(keys: int) -> dict[str, float]:
    """Seconds per operation at a gate where ten thousand wait."""
    gate = Gate(WIDE)
    holder = gate.enqueue(Admission.EXCLUSIVE, nothing)
    figures: dict[str, float] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        figures[name] = (time.perf_counter() - began) / QUEUED

    waiting = queue(gate, keys)
    random.Random(7).shuffle(waiting)  # noqa: S311 - the order of clients that leave

    def leave() -> None:
        for ticket in waiting:
            gate.release(ticket)

    timed("leave the queue", leave)
    again: list[Ticket] = []
    timed("join the queue", lambda: again.extend(queue(gate, keys)))
    running: list[Ticket] = [holder]

    def hand_over() -> None:
        # Each release grants the next ones, which say so and are released in turn.
        while running:
            gate.release(running.pop())

    for ticket in again:
        ticket.on_grant = partial(running.append, ticket)
    timed("end and grant the next", hand_over)
    return figures


def main() -> None:
    """Measure and print."""
    for text, every, keys in (("shared only", 0, 1), ("every tenth exclusive", 10, 50), ("exclusive only", 1, 50)):
        print(f"{text:28s} {passing(every, keys) / OPERATIONS * 1e6:6.2f} us per operation")  # noqa: T201 - a benchmark prints
    for keys in (1, 5_000):
        for name, seconds in deep(keys).items():
            print(f"{name}, {QUEUED} wait, {keys} keys {seconds * 1e6:12.2f} us")  # noqa: T201 - as above
    gate = Gate(WIDE)
    gate.enqueue(Admission.EXCLUSIVE, nothing)
    tracemalloc.start()
    waiting = queue(gate, 5_000)
    print(f"{len(waiting)} waiting tickets: {tracemalloc.get_traced_memory()[0] / 2**20:.1f} MiB")  # noqa: T201 - as above


if __name__ == "__main__":
    main()
