"""Two plots of the answers: how long they agree under each condition, and what each batch size does. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from app.diagnose.axes import Axis, Key, round_ticks
from app.diagnose.cell_map import Cell, cell_map
from app.diagnose.charts import Line, steps
from app.diagnose.conditions import Pair, alone, conditions
from app.diagnose.forks import medoid
from app.diagnose.markup import shortened
from app.diagnose.plot import Plot, prompt_name
from app.diagnose.report import Report
from app.diagnose.rungs import Rung
from app.diagnose.sample import largest_delta, same_tokens, shared_tokens

_TICKS: Final = 8
_STYLES: Final = 12
"""Classes of lines, ``c0`` and on, in the page's style."""

_QUARTERS: Final = 4
_PROMPT, _WHOLE_PROMPT = 24, 80


def agreement(report: Report) -> Plot:
    """How many answers still agree with their reference, token by token."""
    title, several = "How long answers agree", conditions(report.evidence)
    if not several:
        return Plot(title, "There were no two answers to one prompt to compare.")
    every = [pair for condition in several for pair in condition.pairs]
    unit = "token" if all(map(_told, every)) else "character"
    length = max(map(_length, every))
    counts = [standing(condition.pairs, length) for condition in several]
    lines = []
    for place, (condition, left) in enumerate(zip(several, counts, strict=True)):
        many = len(condition.pairs)
        key = Key(f"{condition.name}: {left[-1]} of {many} agree to the end", f"c{place % _STYLES}", line=True)
        lines.append(Line(key, tuple(count / many for count in left)))
    said = (
        f"The share of answers that have not left their reference up to each {unit}. The reference is the answer given "
        f"alone with a cold cache; for those beside long neighbours, the answer beside as many short ones."
    )
    if report.evidence.of(Rung.REPLICA):
        named = enumerate(report.investigation.replicas, start=2)
        said += "".join(f" Replica {number} is {url}." for number, url in named)
    axis = Axis(f"{unit} of the answer, counted from 0", round_ticks(length, _TICKS, whole=True))
    shown = sorted({max(0, round(length * part / _QUARTERS) - 1) for part in range(_QUARTERS + 1)})
    return Plot(
        title,
        said,
        steps(title, "; ".join(line.key.name for line in lines) + ".", lines, axis, "answers that still agree"),
        ("agree up to", *(f"{unit} {at}" for at in shown)),
        tuple(
            (condition.name, *(f"{left[at]} of {len(condition.pairs)}" for at in shown))
            for condition, left in zip(several, counts, strict=True)
        ),
    )


def standing(pairs: Sequence[Pair], length: int) -> tuple[int, ...]:
    """For each unit up to ``length``, how many pairs have not parted at it or before."""
    parted = Counter(shared_tokens(*pair) for pair in pairs if not same_tokens(*pair))
    left, counts = len(pairs), []
    for at in range(length):
        left -= parted[at]
        counts.append(left)
    return tuple(counts)


def batch_map(report: Report) -> Plot:
    """What each size of a batch does to each prompt."""
    title, evidence = "What each batch size does to each prompt", report.evidence
    pairs = _by_size(report)
    sizes = sorted({size for _, size in pairs if size > 1})
    if not sizes:
        return Plot(title, f"No batch was compared with an answer given alone: {evidence.gap(Rung.BATCH)}.")
    prompts = sorted({prompt for prompt, size in pairs if size > 1})
    cells = [[_cell(pairs.get((prompt, size), [])) for size in (1, *sizes)] for prompt in prompts]
    said = (
        "On each cell: how many answers have other tokens than the answer given alone, and the largest difference of a "
        "logprob up to the fork, in nats, which is also the colour. The first column is the answer given alone, again."
    )
    names = [prompt_name(report, prompt) for prompt in prompts]
    columns = ("alone", *map(str, sizes))
    description = "Rows are prompts, columns are batch sizes. The table beside it holds the same figures."
    short = [shortened(name, _PROMPT) for name in names]
    return Plot(
        title,
        said,
        cell_map(title, description, short, columns, cells, "prompts in the batch"),
        ("prompt", *columns),
        tuple(
            (shortened(name, _WHOLE_PROMPT), *(", ".join(cell.lines) for cell in row))
            for name, row in zip(names, cells, strict=True)
        ),
    )


def _by_size(report: Report) -> dict[tuple[int, int], list[Pair]]:
    """Pairs of reference and answer, by prompt and batch size; 1 is alone."""
    groups = alone(report.evidence)
    references = {prompt: medoid(samples) for prompt, samples in groups.items()}
    batched = [sample for sample in report.evidence.of(Rung.BATCH) if sample.setting.size > 1]
    pairs: dict[tuple[int, int], list[Pair]] = {}
    for sample in (*(each for several in groups.values() for each in several), *batched):
        reference = references.get(sample.prompt)
        if reference is not None and reference is not sample:
            pairs.setdefault((sample.prompt, sample.setting.size), []).append((reference, sample))
    return pairs


def _cell(pairs: Sequence[Pair]) -> Cell:
    if not pairs:
        return Cell(None, ("no answer",))
    known = [delta for pair in pairs if (delta := largest_delta(*pair)) is not None]
    said = f"{sum(not same_tokens(*pair) for pair in pairs)} of {len(pairs)}"
    if not known:
        return Cell(None, (said,))
    return Cell(max(known), (said, f"{max(known):.2g} nats" if max(known) else "0 nats"))


def _told(pair: Pair) -> bool:
    return all(sample.choice.token_ids is not None or sample.choice.tokens is not None for sample in pair)


def _length(pair: Pair) -> int:
    """Units of the longer of two answers; one at least, so that an empty answer has a place to differ."""
    sizes = (len(sample.choice.token_ids or sample.choice.tokens or sample.choice.flow) for sample in pair)
    return max(1, *sizes)
