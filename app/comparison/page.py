"""The finding as one HTML file that needs nothing else: no script, no host, no font.

Answers are hostile input. Every text passes through one function that makes control characters visible and escapes the
rest, and the page's own policy lets nothing be loaded or run, should that ever fail.
"""

import re
from collections.abc import Iterator
from html import escape
from typing import Final

from app.comparison.entry import Entry
from app.comparison.finding import Finding, Pair
from app.comparison.plain import visible
from app.comparison.report import counts, figures, fork, margin, notes, place, results
from app.determinism.divergence import first_difference
from app.determinism.output import Choice

PAIRS: Final = 200
"""Pairs that are shown with their texts; a page with more is no help."""

CHARACTERS: Final = 8_000
"""Characters shown of each text, around the fork."""

_MARKED: Final = re.compile(r"\s*\S{0,24}")
_OPEN: Final = 3
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1d2329;--soft:#59636e;--paper:#fff;--line:#d5dbe1;--a:#fde2dd;--b:#d9f0e1;
--hot:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e3e7eb;--soft:#9aa5b1;--paper:#14181c;--line:#333b44;--a:#4a231f;
--b:#1b3d29;--hot:#ff8a80}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:76rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:.25rem 1rem .25rem 0;
overflow-wrap:anywhere}tr{border-bottom:1px solid var(--line)}th{font-weight:600;min-width:9rem}
details{border:1px solid var(--line);border-radius:.4rem;margin:.6rem 0;padding:.5rem .8rem}
summary{cursor:pointer;overflow-wrap:anywhere}summary .flip{color:var(--hot);font-weight:600}
.both{display:grid;grid-template-columns:1fr 1fr;gap:1rem}@media(max-width:48rem){.both{grid-template-columns:1fr}}
pre{white-space:pre-wrap;overflow-wrap:anywhere;font:14px/1.5 ui-monospace,monospace;margin:.3rem 0;
unicode-bidi:isolate}
.same,.soft{color:var(--soft)}.a{background:var(--a)}.b{background:var(--b)}
mark{color:inherit;background:inherit;outline:2px solid var(--hot);outline-offset:1px}
"""
HEAD: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
"""
"""The beginning of a page that loads and runs nothing, with places for a title (markup) and a style."""


def to_page(finding: Finding) -> str:
    """What ``--html`` writes."""
    return "".join(_pieces(finding))


def _pieces(finding: Finding) -> Iterator[str]:
    title = _text(f"{finding.left.name} compared with {finding.right.name}")
    yield HEAD.format(title=title, style=_STYLE)
    yield f"<h1>{title}</h1>\n<table>\n<tr><td></td><th scope=col>A</th><th scope=col>B</th></tr>\n"
    left, right = finding.left, finding.right
    yield _row("run", left.name, right.name)
    yield _row("answers", str(len(left.entries)), str(len(right.entries)))
    yield _row("mode", counts(left.modes), counts(right.modes))
    yield _row("posture", counts(left.postures), counts(right.postures))
    yield _row("without counterpart", _places(finding.only_left), _places(finding.only_right))
    yield "</table>\n<h2>Figures</h2>\n<table>\n"
    yield from (_row(*figure) for figure in figures(finding))
    yield "</table>\n"
    yield from (f"<p>{_text(note)}</p>\n" for note in notes(finding))
    yield from _differences(finding)
    yield "</body>\n</html>\n"


def _differences(finding: Finding) -> Iterator[str]:
    diverged = finding.diverged
    if not diverged:
        return
    many = f", {PAIRS} of {len(diverged)}" if len(diverged) > PAIRS else ""
    yield f"<h2>Pairs that differ, the worst first{many}</h2>\n"
    for number, pair in enumerate(diverged[:PAIRS]):
        yield from _pair(pair, opened=number < _OPEN)


def _pair(pair: Pair, *, opened: bool) -> Iterator[str]:
    flip = '<span class="flip">flipped</span> · ' if pair.flipped else ""
    yield f"<details{' open' if opened else ''}>\n<summary>{flip}<bdi>{_text(pair.left.title or place(pair))}</bdi>"
    facts = [place(pair), f"fork at {fork(pair)}", f"margin {margin(pair)}"]
    if pair.similarity is not None:
        facts.append(f"edit similarity {pair.similarity:.3f}")
    if pair.semantic is not None:
        facts.append(f"semantic {pair.semantic:.3f} (advisory)")
    yield f'<br><span class="soft">{_text(" · ".join(facts))}</span></summary>\n'
    if pair.extracted is not None:
        left, right = map(results, pair.extracted)
        yield f"<table>\n<tr><td></td><th scope=col>A</th><th scope=col>B</th></tr>\n{_row('result', left, right)}"
        yield "</table>\n"
    yield from _texts(pair)
    yield "</details>\n"


def _texts(pair: Pair) -> Iterator[str]:
    first, second = pair.left.output, pair.right.output
    if first is None or second is None:
        yield f"<p>Only digests are kept: {_text(pair.left.digest or '')} and {_text(pair.right.digest or '')}.</p>\n"
        return
    left = {choice.position: choice for choice in first.choices}
    right = {choice.position: choice for choice in second.choices}
    for index in sorted({*left, *right}):
        one, other = left.get(index), right.get(index)
        if len(left) + len(right) > 2:  # noqa: PLR2004 - one choice on each side needs no number
            yield f"<p>Choice {index}</p>\n"
        here, there = one.flow if one else "", other.flow if other else ""
        position = first_difference(here, there)
        parts = here != there
        yield (
            f'<div class="both">{_shown("A", one, position, parts=parts)}'
            f"{_shown('B', other, position, parts=parts)}</div>\n"
        )


def _shown(name: str, choice: Choice | None, position: int, *, parts: bool) -> str:
    if choice is None:
        return f"<div><b>{name}</b> <span class=soft>has no such choice</span></div>"
    flow = choice.flow
    start = max(0, position - CHARACTERS // 2) if len(flow) > CHARACTERS else 0
    stop = min(len(flow), start + CHARACTERS)
    marked = _MARKED.match(flow, position, stop)
    mark = marked.end() if marked is not None else stop
    before = f"<span class=soft>… {start} characters before\n</span>" if start else ""
    after = f"<span class=soft>\n… {len(flow) - stop} characters after</span>" if stop < len(flow) else ""
    kind = name.lower()
    rest = f"<mark>{_text(flow[position:mark])}</mark>{_text(flow[mark:stop])}"
    if position == len(flow):
        # One side may be the other's beginning: then its end is where they part.
        rest = "<mark>(ends)</mark>" if parts else ""
    return (
        f"<div><b>{name}</b> <span class=soft>{_text(choice.finish_reason or 'unfinished')}, {len(flow)} characters"
        f"</span><pre>{before}<span class=same>{_text(flow[start:position])}</span>"
        f'<span class="{kind}">{rest}</span>{after}</pre></div>'
    )


def _places(entries: tuple[Entry, ...]) -> str:
    shown = ", ".join(entry.place for entry in entries[:10])
    return f"{len(entries)}" + (f": {shown}{', …' if len(entries) > 10 else ''}" if entries else "")  # noqa: PLR2004 - a handful


def _row(name: str, *cells: str) -> str:
    return f"<tr><th scope=row>{_text(name)}</th>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>\n"


def _text(text: str) -> str:
    return escape(visible(text))
