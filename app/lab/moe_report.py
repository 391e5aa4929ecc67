"""What ``reprise lab moe`` says of its batches: tables, sentences and data."""

import argparse
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.lab.demonstration import Sheet
from app.lab.moe_batches import Crowding, Seen, Trial
from app.lab.moe_routing import DROPPED

WHOLE_BATCH_RUNS: Final = 4
_ROWS_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that one run of the demonstration computed; ``controls`` are the trials with unlimited capacity.

    ``room`` and ``room_alone`` are capacities per expert, in choices. ``whole_batch_results`` counts different bits of
    the first batch over WHOLE_BATCH_RUNS runs; ``in_front`` is the share of the request's tokens that move at place 0.
    """

    options: argparse.Namespace
    room_alone: int
    room: int
    alone: Seen
    trials: tuple[Trial, ...]
    controls: tuple[Trial, ...]
    whole_batch_results: int
    sweep: tuple[Crowding, ...]
    in_front: float

    @property
    def distinct(self) -> int:
        """How many different outputs the request had in the batches."""
        return len({trial.seen.outputs.tobytes() for trial in self.trials})

    @property
    def worst(self) -> int:
        """The trial in which most tokens moved, the first of equals."""
        return int(np.argmax([np.count_nonzero(trial.moved) for trial in self.trials]))


def sheets(outcome: Outcome) -> tuple[Sheet, ...]:
    """The request batch by batch, the tokens that moved most of all, and the same batches at other capacities."""
    tokens = (_token_sheet(outcome),) if np.any(outcome.trials[outcome.worst].moved) else ()
    return (_trial_sheet(outcome), *tokens, _sweep_sheet(outcome))


def _trial_sheet(outcome: Outcome) -> Sheet:
    columns = ("", "choices that overflowed", "your tokens that moved", "argmax changed", "mean change", "max change")
    tokens, choices = outcome.options.tokens, outcome.options.batch * outcome.options.tokens * outcome.options.top_k
    overflowed = f"{outcome.alone.overflowed} of {outcome.alone.experts.size}"
    rows: list[tuple[str, ...]] = [("alone", overflowed, "", "", "", "")]
    shown = outcome.trials[:_ROWS_SHOWN]
    rows += [_trial_row(f"batch {number}", trial, choices, tokens) for number, trial in enumerate(shown, 1)]
    if outcome.options.trials > len(shown):
        rows.append((f"{outcome.options.trials - len(shown)} more", *[""] * 5))
    rows.append(_trial_row("batch 1, unlimited", outcome.controls[0], choices, tokens))
    title = (
        f"Your request of {tokens} tokens in batches of {outcome.options.batch}; an expert takes {outcome.room} choices"
        f"{' per step' if outcome.options.phase == 'decode' else ''} ({outcome.room_alone} when you are alone)"
    )
    return Sheet(title, columns, tuple(rows))


def _trial_row(name: str, trial: Trial, choices: int, tokens: int) -> tuple[str, ...]:
    return (
        name,
        f"{trial.seen.overflowed} of {choices}",
        f"{np.count_nonzero(trial.moved)} of {tokens}",
        str(trial.argmax_changed),
        f"{trial.mean:.3g}",
        f"{trial.largest:.3g}",
    )


def _token_sheet(outcome: Outcome) -> Sheet:
    trial = outcome.trials[outcome.worst]
    moved = np.flatnonzero(trial.moved)
    rows: list[tuple[str, ...]] = [
        (
            str(token + 1),
            _named(outcome.alone.experts[token], outcome.options.experts),
            _named(trial.seen.experts[token], outcome.options.experts),
            f"{np.mean(trial.changes[token]):.3g}",
            f"{np.max(trial.changes[token]):.3g}",
            _argmax(outcome.alone.argmax[token], trial.seen.argmax[token]),
        )
        for token in moved[:_ROWS_SHOWN]
    ]
    if len(moved) > len(rows):
        rows.append((f"{len(moved) - len(rows)} more", *[""] * 5))
    columns = ("token", "experts alone", "experts in the batch", "mean change", "max change", "argmax token")
    return Sheet(f"The tokens that moved in batch {outcome.worst + 1}", columns, tuple(rows))


def _named(experts: NDArray[np.intp], fallback: int) -> str:
    names = {DROPPED: "none", fallback: "fallback"}
    return ", ".join(names.get(expert, str(expert)) for expert in experts.tolist())


def _argmax(alone: int, batched: int) -> str:
    return f"{alone}, stays" if alone == batched else f"{alone} -> {batched}"


def _sweep_sheet(outcome: Outcome) -> Sheet:
    columns = ("capacity factor", "capacity per expert", "choices that overflowed", "your tokens that moved")
    rows = tuple(
        (
            "unlimited" if one.factor is None else f"{one.factor:g}",
            "unlimited" if one.room is None else str(one.room),
            f"{100 * one.overflowed_share:.3g} %",
            f"{100 * one.moved_share:.3g} %",
        )
        for one in outcome.sweep
    )
    return Sheet(f"The same {outcome.options.trials} batches at other capacities", columns, rows)


def findings(outcome: Outcome) -> list[str]:
    """What happened to the request, that only the neighbours' contents did it, and the two controls."""
    moved = any(np.any(trial.moved) for trial in outcome.trials)
    if not moved:
        return [_nothing_said(outcome), _whole_said(outcome), _control_said(outcome)]
    contents = [_contents_said(outcome)] if len(outcome.trials) > 1 else []
    said = [_worst_said(outcome), *contents, _whole_said(outcome), _control_said(outcome)]
    return said if outcome.options.place == 1 else [*said, _place_said(outcome)]


def _worst_said(outcome: Outcome) -> str:
    trial = outcome.trials[outcome.worst]
    size = float(np.sqrt(np.mean(np.square(outcome.alone.outputs))))
    return (
        f"In batch {outcome.worst + 1}, {np.count_nonzero(trial.moved)} of {len(trial.moved)} tokens of your request "
        f"had other experts than alone; its output moved by up to {trial.largest:.3g}, {trial.mean:.3g} on average "
        f"(its numbers are about {size:.2g}, where a step of float32 is {np.spacing(np.float32(size)):.1g}), and the "
        f"argmax token of {trial.argmax_changed} changed."
    )


def _nothing_said(outcome: Outcome) -> str:
    why = "it was alone in each" if outcome.options.batch == 1 else "its experts had room wherever they had it alone"
    return f"No token of your request moved in any of the {len(outcome.trials)} batches: {why}."


def _contents_said(outcome: Outcome) -> str:
    counts = [int(np.count_nonzero(trial.moved)) for trial in outcome.trials]
    return (
        f"In all, {len(counts)} batches of one shape gave your request {_results(outcome.distinct)}; {min(counts)} to "
        f"{max(counts)} of its {outcome.options.tokens} tokens moved. Only the contents of the neighbours differed."
    )


def _whole_said(outcome: Outcome) -> str:
    return (
        f"The whole of batch 1, run {WHOLE_BATCH_RUNS} times, gave {_results(outcome.whole_batch_results)}, bit for "
        "bit: what repeats is the batch."
    )


def _control_said(outcome: Outcome) -> str:
    moved = sum(int(np.count_nonzero(trial.moved)) for trial in outcome.controls)
    return (
        f"With unlimited capacity {moved} of {sum(len(trial.moved) for trial in outcome.controls)} tokens moved, and "
        f"the largest change is {max(trial.largest for trial in outcome.controls):g}: the control."
    )


def _place_said(outcome: Outcome) -> str:
    at_place = float(np.mean([trial.moved for trial in outcome.trials]))
    return (
        f"At the front of the same batches {100 * outcome.in_front:.3g} % of your tokens move, at your place "
        f"{100 * at_place:.3g} %: who comes first is served first."
    )


def _results(count: int) -> str:
    return "1 result" if count == 1 else f"{count} different results"


def data(outcome: Outcome) -> dict[str, Any]:
    """For ``--json``; tokens and experts are counted from 0."""
    return {
        "capacity_alone_choices": outcome.room_alone,
        "capacity_in_batch_choices": outcome.room,
        "alone": {"overflowed_choices": outcome.alone.overflowed, "experts": outcome.alone.experts.tolist()},
        "trials": [_trial_data(trial) for trial in outcome.trials],
        "controls_unlimited": [_trial_data(trial) for trial in outcome.controls],
        "distinct_results_of_request": outcome.distinct,
        "distinct_results_of_whole_batch": outcome.whole_batch_results,
        "whole_batch_runs": WHOLE_BATCH_RUNS,
        "moved_share_in_front": outcome.in_front,
        "sweep": [one._asdict() for one in outcome.sweep],
    }


def _trial_data(trial: Trial) -> dict[str, Any]:
    return {
        "overflowed_choices": trial.seen.overflowed,
        "moved_tokens": np.flatnonzero(trial.moved).tolist(),
        "experts": trial.seen.experts.tolist(),
        "change_max": trial.largest,
        "change_mean": trial.mean,
        "argmax_changed_tokens": trial.argmax_changed,
    }
