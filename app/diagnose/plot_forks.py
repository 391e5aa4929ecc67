"""Two plots of the forks: where answers part, and how close the choice was there. Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from app.determinism.divergence import NEAR_NATS, Closeness
from app.diagnose.axes import Axis, Key, round_ticks
from app.diagnose.charts import Bin, Limit, histogram
from app.diagnose.plot import Plot
from app.diagnose.report import Report
from app.diagnose.rungs import Rung
from app.diagnose.sample import Fork

KINDS: Final = {
    Closeness.TIE: Key("tie", "tie"),
    Closeness.NEAR: Key("near", "near"),
    Closeness.CLEAR: Key("clear", "clear"),
    Closeness.UNKNOWN: Key("margin not known", "unknown"),
}

MARGIN_STEP: Final = 0.125
"""Nats; what neighbouring logits between 16 and 32 are apart in bfloat16."""

MARGIN_END: Final = 2.0
"""Nats; larger margins are counted in one last bar."""

_MOST_BINS: Final = 48
_TICKS: Final = 8


def positions(report: Report) -> Plot:
    """At which token answers part."""
    title, forks = "Where answers part", report.verdict.forks.forks
    if not forks:
        return Plot(title, _no_fork(report))
    length = max(report.course.tokens, *(fork.token + 1 for fork in forks))
    width = math.ceil(length / _MOST_BINS)
    bins = [
        Bin(
            start,
            start + width,
            _counts(report, [fork for fork in forks if start <= fork.token < start + width]),
            f"token {start}" if width == 1 else f"tokens {start} to {start + width - 1}",
        )
        for start in range(0, length, width)
    ]
    said = (
        f"Each of the {len(forks)} different forks counts once, at the first token that two answers do not share. What "
        f"follows a fork answers another text."
    )
    axis = Axis("token of the answer, counted from 0", round_ticks(bins[-1].stop, _TICKS, whole=True))
    return _plot(title, said, bins, axis)


def margins(report: Report) -> Plot:
    """How close the choice was where answers part."""
    title, forks = "How close the choice was there", report.verdict.forks
    known = [(fork, fork.margin) for fork in forks.forks if fork.margin is not None]
    if not forks.forks:
        return Plot(title, _no_fork(report))
    if not known:
        return Plot(title, "No margin is known: the answers hold no logprobs at their forks.")
    edges = [step * MARGIN_STEP for step in range(round(MARGIN_END / MARGIN_STEP) + 1)]
    bins = []
    for start, stop in zip(edges, [*edges[1:], math.inf], strict=True):
        # A margin on an edge, as those of 16 bits are, counts below it: up to the limit means with the limit.
        inside = [fork for fork, margin in known if start < margin <= stop or margin == start == 0]
        name = f"more than {start:g} nats" if stop == math.inf else f"{start:g} to {stop:g} nats"
        bins.append(Bin(start, min(stop, start + MARGIN_STEP), _counts(report, inside), name))
    ticks = tuple((at, f"{at:g}") for at in edges[::4])
    axis = Axis("margin in nats; the last bar holds all larger ones", ticks)
    return _plot(title, _of_margins(report, len(forks.forks) - len(known)), bins, axis, _limits(report))


def _of_margins(report: Report, unknown: int) -> str:
    said = (
        f"The margin is the distance between the two likeliest tokens at a fork. Up to "
        f"{report.verdict.forks.limit:.2g} nats it is a tie here, which rounding turns; above {_near(report):.2g} nats "
        f"no rounding explains a change."
    )
    if unknown:
        said += f" Of {unknown} more forks no margin is known."
    if report.evidence.sampled:
        said += " These answers were sampled, and a sampled token need not be the likeliest: the kinds say little."
    return said


def _limits(report: Report) -> list[Limit]:
    tie, near = report.verdict.forks.limit, _near(report)
    limits = [Limit(tie, f"tie, up to {tie:.2g} nats")]
    return limits if near == tie else [*limits, Limit(near, f"near, up to {near:.2g} nats")]


def _near(report: Report) -> float:
    return max(NEAR_NATS, report.verdict.forks.limit)


def _plot(title: str, said: str, bins: Sequence[Bin], axis: Axis, limits: Sequence[Limit] = ()) -> Plot:
    keys = tuple(KINDS.values())
    totals = [sum(each.counts[place] for each in bins) for place in range(len(keys))]
    spoken = ", ".join(f"{total} {key.name}" for total, key in zip(totals, keys, strict=True) if total)
    return Plot(
        title,
        said,
        histogram(title, f"Forks: {spoken}.", bins, keys, axis, "forks", limits),
        ("forks at", *(key.name for key in keys)),
        tuple((each.name, *map(str, each.counts)) for each in bins if any(each.counts)),
    )


def _counts(report: Report, forks: Sequence[Fork]) -> tuple[int, ...]:
    found = Counter(report.verdict.forks.closeness(fork) for fork in forks)
    return tuple(found[kind] for kind in KINDS)


def _no_fork(report: Report) -> str:
    samples = [sample for rung in Rung for sample in report.evidence.of(rung)]
    if not samples:
        return "There are no answers."
    if all(sample.choice.token_ids is None and sample.choice.tokens is None for sample in samples):
        return "The answers do not tell their tokens, so where they part is not known."
    return "No answer forked."
