"""The finding for people: tables, sentences and the exit status. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from app.comparison.entry import Entry
from app.comparison.finding import Extracted, Finding, Pair, Spread
from app.comparison.plain import one_line
from app.determinism.divergence import Closeness
from app.determinism.statistics import rate_text

EXIT_FINE: Final = 0
EXIT_DIFFERENT: Final = 1
EXIT_UNUSABLE: Final = 2
EXIT_INTERRUPTED: Final = 130

_TITLE_CHARACTERS: Final = 60
_RESULT_CHARACTERS: Final = 30
_NAME_CHARACTERS: Final = 80
_REASON_CHARACTERS: Final = 200
_REASONS: Final = 5
_NONE: Final = "-"
_UNKNOWN: Final = "unknown"


def exit_code(finding: Finding, *, fail_on_difference: bool) -> int:
    """130 interrupted; 2 where nothing was compared; 1 where that was asked for and not everything is equal; else 0."""
    if finding.interrupted:
        return EXIT_INTERRUPTED
    if not finding.compared:
        return EXIT_UNUSABLE
    return EXIT_DIFFERENT if fail_on_difference and not finding.equal else EXIT_FINE


def render_tables(finding: Finding, worst: int) -> tuple[Table, ...]:
    """The two runs, the figures, and so many of the ``worst`` pairs."""
    shown = finding.diverged[:worst]
    tables = (_sides(finding), _figures(finding))
    return (*tables, _worst(finding, shown)) if shown else tables


def figures(finding: Finding) -> Iterator[tuple[str, str]]:
    """Every figure as a name and a sentence."""
    compared, diverged = len(finding.compared), len(finding.diverged)
    yield "matched", f"{len(finding.pairs)} pairs, {compared} with a verdict, of {_many(finding.requests, 'request')}"
    if finding.against_one:
        yield (
            "one to several",
            f"{_many(finding.against_one, 'pair')}: several answers of a side with the one of the other",
        )
    if any(finding.left_over):
        left, right = finding.left_over
        yield "left over", f"{left} in A, {right} in B: the other side has fewer repeats of their requests"
    yield "verbatim", f"{compared - diverged} of {compared} agree"
    yield "diverged", rate_text(diverged, compared)
    if diverged:
        yield "edit similarity", _spread(finding.similarity, ".3f")
        if finding.semantic:
            yield "semantic", f"{_spread(finding.meaning, '.3f')} (advisory)"
        yield "fork, tokens", _spread(finding.fork_tokens, "g", least="first")
        yield "fork, characters", _spread(finding.fork_characters, "g", least="first")
        yield "margin", ", ".join(f"{count} {name}" for name, count in finding.closeness.items() if count)
    if finding.rule is not None:
        left, right = finding.unparsable
        rule = one_line(finding.rule, _NAME_CHARACTERS)
        yield "flipped", f'{rate_text(finding.flipped, finding.scored)}, by the rule "{rule}"'
        yield "unparsable", f"{left} in A, {right} in B"
    if finding.incomparable:
        yield "incomparable", "; ".join(_reasons(finding.incomparable))


def _reasons(counted: Mapping[str, int]) -> Iterator[str]:
    ordered = sorted(counted.items(), key=lambda each: -each[1])
    yield from (f"{count}: {one_line(why, _REASON_CHARACTERS)}" for why, count in ordered[:_REASONS])
    if others := sum(count for _, count in ordered[_REASONS:]):
        yield f"{others}: other reasons"


def notes(finding: Finding) -> tuple[str, ...]:
    """What must be said beside the figures."""
    return tuple(_notes(finding))


def place(pair: Pair) -> str:
    """Where the two answers are."""
    return f"{pair.left.place} | {pair.right.place}"


def fork(pair: Pair) -> str:
    """Where the two part."""
    comparison = pair.comparison
    if comparison.fork_tokens is not None:
        return f"token {comparison.fork_tokens}"
    return _UNKNOWN if comparison.fork_characters is None else f"character {comparison.fork_characters}"


def margin(pair: Pair) -> str:
    """How close the choice was there."""
    nats = pair.comparison.margin
    return Closeness.UNKNOWN.value if nats is None else f"{Closeness.of(nats).value}, {nats:.3g} nats"


def results(extracted: Extracted) -> str:
    """The results within an answer."""
    return "unparsable" if extracted is None else ", ".join(extracted)


def counts(of: Mapping[str, int]) -> str:
    """Names, each with its count where there are several."""
    if len(of) == 1:
        return one_line(next(iter(of)), _NAME_CHARACTERS)
    return ", ".join(f"{count} {one_line(name, _NAME_CHARACTERS)}" for name, count in of.items())


def _sides(finding: Finding) -> Table:
    table = _empty("")
    for header, side in (("A", finding.left), ("B", finding.right)):
        table.add_column(Text(f"{header}: {one_line(side.name, _NAME_CHARACTERS)}"), overflow="fold")
    left, right = finding.left, finding.right
    table.add_row("answers", str(len(left.entries)), str(len(right.entries)))
    table.add_row("mode", Text(counts(left.modes)), Text(counts(right.modes)))
    table.add_row("posture", Text(counts(left.postures)), Text(counts(right.postures)))
    table.add_row("without counterpart", str(len(finding.only_left)), str(len(finding.only_right)))
    return table


def _figures(finding: Finding) -> Table:
    table = _empty("")
    table.show_header = False
    table.add_column("", overflow="fold")
    for name, said in figures(finding):
        table.add_row(name, Text(said))
    return table


def _worst(finding: Finding, shown: tuple[Pair, ...]) -> Table:
    total = len(finding.diverged)
    many = "" if total == len(shown) else f", {len(shown)} of {total}"
    table = _empty("A | B")
    table.title, table.title_justify, table.title_style = f"Pairs that differ, the worst first{many}", "left", "bold"
    for header in ("request", "fork", "margin", "edit"):
        table.add_column(header, overflow="fold")
    if finding.semantic:
        table.add_column("semantic")
    if finding.rule is not None:
        table.add_column("result in A | in B", overflow="fold")
    for pair in shown:
        cells = [place(pair), _title(pair.left), fork(pair), margin(pair), _figure(pair.similarity)]
        if finding.semantic:
            cells.append(_figure(pair.semantic))
        if finding.rule is not None:
            cells.append(_both(pair))
        table.add_row(*(Text(cell, style="bold red" if pair.flipped else "") for cell in cells))
    return table


def _empty(first: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    return table


def _title(entry: Entry) -> str:
    return one_line(entry.title, _TITLE_CHARACTERS) or _NONE


def _both(pair: Pair) -> str:
    if pair.extracted is None:
        return _NONE
    return " | ".join(one_line(results(side), _RESULT_CHARACTERS) for side in pair.extracted)


def _figure(figure: float | None) -> str:
    return _NONE if figure is None else f"{figure:.3f}"


def _spread(spread: Spread | None, form: str, least: str = "least") -> str:
    return _UNKNOWN if spread is None else f"median {spread.median:{form}}, {least} {spread.least:{form}}"


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _notes(finding: Finding) -> Iterator[str]:
    if finding.interrupted:
        yield "Interrupted: the figures cover what had been answered by then."
    if not finding.compared:
        yield "Nothing was compared, so nothing is known."
        return
    if finding.requests < len(finding.compared):
        yield (
            f"{_many(len(finding.compared), 'pair')} of {_many(finding.requests, 'request')}: repeats of one request "
            f"are no independent trials, so a bound over them speaks of these requests alone."
        )
    if (left := set(finding.left.postures)) != (right := set(finding.right.postures)) and "unknown" not in left | right:
        yield "The postures differ: what differs between the answers may be the engine, not its load."
    if any(side.only_texts for side in (finding.left, finding.right)):
        yield from _ledger_notes(finding)


def _ledger_notes(finding: Finding) -> Iterator[str]:
    without = sum(pair.left.output is None or pair.right.output is None for pair in finding.compared)
    if without:
        yield (
            f"The ledger keeps no text of {_many(without, 'pair')}: their digests alone are compared, so nothing is "
            f"known of forks and results there. REPRISE_KEEP_TEXTS keeps texts from now on."
        )
    if without < len(finding.compared):
        yield "The texts are those that the ledger keeps, perhaps cut and redacted; the verdict is that of the digests."
