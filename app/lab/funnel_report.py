"""What ``reprise lab funnel`` says of its runs: tables, sentences and data."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.determinism.statistics import clopper_pearson_upper, rate_text
from app.lab.demonstration import Sheet
from app.lab.funnel_decoder import REACH_STEPS, Effect, Setting
from app.lab.funnel_judges import ALIKE, Judgement
from app.lab.funnel_model import Numbers, Tokens


@dataclass(frozen=True, slots=True)
class Run:
    """What some of L1 to L3 did. The forks, one per answer, count from 0; -1 is an answer that did not diverge.

    ``settled`` are the forks with L4 off, ``forks`` those with it as chosen; ``margins`` the distances of the two
    largest logits of the reference at the latter.
    """

    layers: tuple[str, ...]
    effect: Effect
    settled: Tokens
    forks: Tokens
    margins: Numbers

    @property
    def name(self) -> str:
        """The layers as a word."""
        return " + ".join(self.layers) or "none"

    @property
    def diverged(self) -> int:
        """How many answers have a fork."""
        return int(np.count_nonzero(self.forks >= 0))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The runs from none of the layers to all that were chosen, and the judgements of the last.

    ``ties`` says whether L4 was chosen. ``margin`` is the median distance of the two largest logits; ``lowest_id`` are
    the forks under L2 and L3 with the lowest token id of each near tie taken, None where neither was chosen.
    """

    setting: Setting
    ties: bool
    runs: tuple[Run, ...]
    margin: float
    lowest_id: Tokens | None
    judgements: tuple[Judgement, ...]

    @property
    def answers(self) -> int:
        """How many answers each run gave."""
        return len(self.setting.prompts) * self.setting.repeats


def sheets(outcome: Outcome) -> tuple[Sheet, ...]:
    """The layers, and the judges."""
    return (_layer_sheet(outcome), _judge_sheet(outcome))


def _layer_sheet(outcome: Outcome) -> Sheet:
    columns = ("layers on", "steps", "typical change", "largest", "diverged, L4 off (95 %)")
    with_ties = ("diverged, L4 on (95 %)",) if outcome.ties else ()
    rows = tuple(_layer_row(run, outcome) for run in outcome.runs)
    title = (
        f"{outcome.answers} answers of {outcome.setting.tokens} tokens per row, sums in {outcome.setting.dtype}; the "
        "share of steps with other logits, and their change"
    )
    return Sheet(title, (*columns, *with_ties, "median fork"), rows)


def _layer_row(run: Run, outcome: Outcome) -> tuple[str, ...]:
    touched, typical, largest = run.effect
    rates = [run.settled, run.forks] if outcome.ties else [run.settled]
    return (
        run.name,
        f"{100 * touched:.3g} %",
        f"{typical:.2g}",
        f"{largest:.3g}",
        *map(_short_rate, rates),
        f"token {_median_fork(run.forks)}" if run.diverged else "",
    )


def _judge_sheet(outcome: Outcome) -> Sheet:
    columns = ("judge", "looks at", "median", "lowest", f"diverged, yet {ALIKE:g} or more", "other prompts, median")
    diverged = outcome.runs[-1].forks >= 0
    rows = tuple(
        (
            one.judge,
            one.looks_at,
            f"{np.median(one.scores):.2f}",
            f"{np.min(one.scores):.2f}",
            f"{np.count_nonzero(one.scores[diverged] >= ALIKE)} of {np.count_nonzero(diverged)}",
            "" if one.other_prompts is None else f"{one.other_prompts:.2f}",
        )
        for one in outcome.judgements
    )
    return Sheet(f"Three judges of the answers with {_on(outcome)}; 1 is a score of equal answers", columns, rows)


def _on(outcome: Outcome) -> str:
    return " + ".join((*outcome.runs[-1].layers, *(("L4",) if outcome.ties else ()))) or "no layer"


def findings(outcome: Outcome) -> list[str]:
    """The control, what each layer does to the logits and to the answers, and what the judges make of it."""
    by_name = {run.name: run for run in outcome.runs}
    rounding = [by_name[name] for name in ("L2", "L3") if name in by_name]
    said = [_none_said(outcome)]
    said += [_size_said(run, by_name.get("L1")) for run in outcome.runs if len(run.layers) == 1]
    if outcome.ties:
        said += [_flip_said(run) for run in rounding if run.effect.touched_share]
        said += _margins_said([run for run in outcome.runs if len(run.layers) == 1 and run.diverged], outcome.margin)
    if outcome.lowest_id is not None:
        said.append(_lowest_said(outcome.lowest_id))
    return [*said, _judges_said(outcome)]


def _none_said(outcome: Outcome) -> str:
    extra = "; ties do no harm where nothing disturbs the logits" if outcome.ties else ""
    return f"Diverged with none of L1 to L3 on: {_rate(outcome.runs[0].forks)}{extra}."


def _size_said(run: Run, large: Run | None) -> str:
    touched, typical, largest = run.effect
    if not touched:
        return f"{run.name} changed no logit in this run: none of its causes came up."
    times = ""
    if run.name != "L1" and large is not None and large.effect.touched_share:
        times = f", {float(f'{large.effect.typical / typical:.2g}'):,.0f} times less than L1"
    return (
        f"{run.name} changed logits at {100 * touched:.3g} % of the steps: there by {typical:.2g} on average{times}, "
        f"and by {largest:.3g} at most."
    )


def _flip_said(run: Run) -> str:
    if not run.diverged:
        return f"Diverged with {run.name} and L4: {_rate(run.forks)}; no tie was close enough for it in this run."
    return (
        f"Diverged with {run.name} and L4: {_rate(run.forks)}, half of those by token {_median_fork(run.forks)}. With "
        f"{run.name} but L4 off: {_rate(run.settled)}."
    )


def _margins_said(diverged: list[Run], median: float) -> list[str]:
    if not diverged:
        return []
    each = ", ".join(f"{run.name} {np.max(run.margins):.2g}" for run in diverged)
    said = (
        f"How far apart the two largest logits were at a fork, at most: {each}; over all steps the median is "
        f"{median:.2g}. A fork at a clear margin is not L4's."
    )
    return [said]


def _lowest_said(forks: Tokens) -> str:
    but = "but it moves the tie to the edge of its reach" if (forks >= 0).any() else "and no edge of it was hit here"
    return (
        f"Diverged under rounding alone when the lowest token id within {REACH_STEPS} steps of the largest logit is "
        f"taken: {_rate(forks)}. Such a rule needs no arbiter, {but}."
    )


def _judges_said(outcome: Outcome) -> str:
    diverged = outcome.runs[-1].forks >= 0
    if not diverged.any():
        return f"Diverged with {_on(outcome)}: {_rate(outcome.runs[-1].forks)}. All judges agree."
    _, fuzzy, semantic = outcome.judgements
    alike = np.count_nonzero(semantic.scores[diverged] >= ALIKE)
    return (
        f"Diverged with {_on(outcome)}: {_rate(outcome.runs[-1].forks)}. The median likeness of those is "
        f"{np.median(fuzzy.scores[diverged]):.2f} by edit distance and {np.median(semantic.scores[diverged]):.2f} by "
        f"topics, the stand-in; {alike} of them reach {ALIKE:g} there. They count as diverged all the same."
    )


def _rate(forks: Tokens) -> str:
    return rate_text(int(np.count_nonzero(forks >= 0)), len(forks))


def _short_rate(forks: Tokens) -> str:
    """The count and the bound; the column names the confidence."""
    count, *_, bound = _rate(forks).removesuffix(" (95 %)").split(", ")
    return f"{count}, {bound}"


def _median_fork(forks: Tokens) -> int:
    """The token, counted from 1, by which half of the answers that have a fork have had it."""
    return int(np.quantile(forks[forks >= 0], 0.5, method="inverted_cdf")) + 1


def data(outcome: Outcome) -> dict[str, Any]:
    """For ``--json``; a fork counts tokens from 1, and 0 is an answer that did not diverge."""
    return {
        "answers": outcome.answers,
        "dtype": outcome.setting.dtype,
        "margin_median_logits": outcome.margin,
        "runs": [_run_data(run, outcome) for run in outcome.runs],
        "lowest_id": None if outcome.lowest_id is None else _forks_data(outcome.lowest_id),
        "judges": [
            {
                "judge": one.judge,
                "scores": [round(score, 6) for score in one.scores.tolist()],
                "other_prompts_median": one.other_prompts,
            }
            for one in outcome.judgements
        ],
    }


def _run_data(run: Run, outcome: Outcome) -> dict[str, Any]:
    return {
        "layers": list(run.layers),
        "touched_steps_share": run.effect.touched_share,
        "change_typical_logits": run.effect.typical,
        "change_largest_logits": run.effect.largest,
        "fork_margin_largest_logits": float(np.max(run.margins)) if run.diverged else None,
        "with_l4": _forks_data(run.forks) if outcome.ties else None,
        "without_l4": _forks_data(run.settled),
    }


def _forks_data(forks: Tokens) -> dict[str, Any]:
    diverged = int(np.count_nonzero(forks >= 0))
    return {
        "diverged": diverged,
        "rate_below": clopper_pearson_upper(diverged, len(forks)),
        "fork_median_token": _median_fork(forks) if diverged else None,
        "fork_tokens": (forks + 1).tolist(),
    }
