"""Attention splits its sum over the KV cache: into a fixed number of slices, or into slices of a fixed size."""

from typing import Any, Final, NamedTuple

import numpy as np

from app.lab.demonstration import Sheet
from app.lab.part import Part
from app.lab.precision import Array, bits, raw, rounded
from app.lab.summation import edges_by_number, edges_by_size, partials, sequential

_SHOWN_EDGES: Final = 5
_LOADS: Final = (1, 2, 4, 8, 16)


class Split(NamedTuple):
    """One way to cut one length: boundaries, partial sums, and how many slices before the last kept their bits."""

    edges: tuple[int, ...]
    partial: Array
    kept: int
    closed: int


class Length(NamedTuple):
    """Both ways for one length of the KV cache, in tokens."""

    tokens: int
    by_number: Split
    by_size: Split


def lengths_of(splits: int, size: int) -> tuple[int, ...]:
    """Lengths around the first one that ``splits`` slices of ``size`` tokens fill, each the prefix of the next."""
    full = splits * size
    return (full - size // 2, full, full + 1, full + size // 2, full + size, 2 * full, 2 * full + 1)


def split(weights: Array, edges: tuple[int, ...], before: Split | None) -> Split:
    """Cut ``weights`` of shape ``(tokens,)``, and compare with the split of the shorter length before it.

    Only slices before its last one are compared: the last one is open, and more tokens may join it.
    """
    partial = partials(weights, edges)
    if before is None:
        return Split(edges, partial, 0, 0)
    closed = len(before.partial) - 1
    here = min(closed, len(partial))
    kept = int(np.count_nonzero(raw(before.partial[:here]) == raw(partial[:here])))
    return Split(edges, partial, kept, closed)


def grown(weights: Array, lengths: tuple[int, ...], splits: int, size: int) -> list[Length]:
    """Both ways at each length; the weights of the longest are given, and a shorter one has a prefix of them."""
    found: list[Length] = []
    for tokens in lengths:
        last = found[-1] if found else None
        number = split(weights[:tokens], edges_by_number(tokens, splits), last.by_number if last else None)
        fixed = split(weights[:tokens], edges_by_size(tokens, size), last.by_size if last else None)
        found.append(Length(tokens, number, fixed))
    return found


def totals_by_load(weights: Array, loads: tuple[int, ...]) -> list[tuple[int, int, Array]]:
    """(Requests in the batch, slices, sum) where a kernel cuts until all loads keep as many blocks busy."""
    rows = []
    for load in loads:
        slices = max(loads) // load
        rows.append((load, slices, sequential(partials(weights, edges_by_number(len(weights), slices)))))
    return rows


def split_kv(name: str, splits: int, size: int, random: np.random.Generator) -> Part:
    """The sum is the denominator of softmax: one weight ``exp(score - highest score)`` per token in the cache."""
    lengths = lengths_of(splits, size)
    scores = random.standard_normal(max(lengths))
    weights = rounded(np.exp(scores - scores.max()), name)
    rows = grown(weights, lengths, splits, size)
    loads = totals_by_load(weights, _LOADS)
    return Part(
        (_lengths_sheet(name, rows, splits, size), _loads_sheet(name, loads, len(weights))),
        (_kept_sentence(rows, splits, size), _load_sentence(loads, len(weights))),
        {
            "split_kv": {
                "format": name,
                "lengths": [_plain(row) for row in rows],
                "by_load": [
                    {"requests": load, "slices": slices, "sum": float(total), "sum_bits": bits(total, name)}
                    for load, slices, total in loads
                ],
            }
        },
    )


def _lengths_sheet(name: str, rows: list[Length], splits: int, size: int) -> Sheet:
    title = f"KV cache that grows ({name}): the boundaries, and how many closed slices kept the bits of their sum"
    number, fixed = f"{splits} slices", f"slices of {size}"
    columns = ("tokens", number, "kept", fixed, "kept")
    cells = tuple(
        (
            str(row.tokens),
            _shown(row.by_number.edges),
            _kept(row.by_number),
            _shown(row.by_size.edges),
            _kept(row.by_size),
        )
        for row in rows
    )
    return Sheet(title, columns, cells)


def _loads_sheet(name: str, loads: list[tuple[int, int, Array]], tokens: int) -> Sheet:
    cells = tuple((str(load), str(slices), f"{float(total):.9g}", bits(total, name)) for load, slices, total in loads)
    title = f"{tokens} tokens, in as many slices as the batch leaves room for"
    return Sheet(title, ("requests in the batch", "slices", "sum", "sign exponent fraction"), cells)


def _shown(edges: tuple[int, ...]) -> str:
    if len(edges) <= _SHOWN_EDGES + 1:
        return " ".join(map(str, edges))
    return " ".join((*map(str, edges[: _SHOWN_EDGES - 1]), "...", str(edges[-1])))


def _kept(one: Split) -> str:
    return f"{one.kept} of {one.closed}" if one.closed else "-"


def _kept_sentence(rows: list[Length], splits: int, size: int) -> str:
    number = sum(row.by_number.kept for row in rows), sum(row.by_number.closed for row in rows)
    fixed = sum(row.by_size.kept for row in rows), sum(row.by_size.closed for row in rows)
    steps = len(rows) - 1
    return (
        f"The cache grew {steps} times. With {splits} slices, {number[0]} of {number[1]} partial sums kept their bits; "
        f"with slices of {size} tokens, {fixed[0]} of {fixed[1]}."
    )


def _load_sentence(loads: list[tuple[int, int, Array]], tokens: int) -> str:
    distinct = len({int(raw(total)) for _, _, total in loads})
    if distinct == 1:
        return f"At {tokens} tokens, every number of slices gave the same sum; no difference was seen."
    return (
        f"At {tokens} tokens, {len(loads)} numbers of slices, picked by the load, gave {distinct} different sums of "
        "the same cache; a fixed size cuts it one way only."
    )


def _plain(row: Length) -> dict[str, Any]:
    return {
        "tokens": row.tokens,
        **{
            key: {"boundaries": list(one.edges), "kept": one.kept, "closed_before": one.closed}
            for key, one in (("fixed_number", row.by_number), ("fixed_size", row.by_size))
        },
    }
