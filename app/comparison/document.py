"""The finding as one JSON document: figures and pairs. Unknown figures are null. Pure.

No text of a request or an answer is in it, but what was asked for: the results that were extracted.
"""

from typing import Any, Final

from app.comparison.entry import Entry, Side
from app.comparison.finding import Finding, Pair, Spread
from app.comparison.report import notes
from app.determinism.divergence import Closeness
from app.determinism.statistics import CONFIDENCE, clopper_pearson_upper, rate_text

FORMAT: Final = "reprise-compare/1"


def to_document(finding: Finding, exit_code: int) -> dict[str, Any]:
    """What ``--json`` writes. Pairs that agree are counted, and not listed."""
    compared = len(finding.compared)
    left, right = finding.unparsable
    return {
        "format": FORMAT,
        "a": _side(finding.left, finding.only_left),
        "b": _side(finding.right, finding.only_right),
        "pairs": {
            "matched": len(finding.pairs),
            "compared": compared,
            "requests": finding.requests,
            "one_to_several": finding.against_one,
            "left_over": dict(zip("ab", finding.left_over, strict=True)),
        },
        "agree": compared - len(finding.diverged),
        "diverged": _rate(len(finding.diverged), compared),
        "incomparable": dict(finding.incomparable),
        "edit_similarity": _spread(finding.similarity),
        "semantic_similarity": _spread(finding.meaning),
        "fork_tokens": _spread(finding.fork_tokens),
        "fork_characters": _spread(finding.fork_characters),
        "margins": {closeness.value: count for closeness, count in finding.closeness.items()},
        "results": None
        if finding.rule is None
        else {
            "rule": finding.rule,
            "flipped": _rate(finding.flipped, finding.scored),
            "unparsable": {"a": left, "b": right},
        },
        "differences": [_pair(pair) for pair in finding.diverged],
        "notes": list(notes(finding)),
        "interrupted": finding.interrupted,
        "equal": finding.equal,
        "exit_code": exit_code,
    }


def _side(side: Side, alone: tuple[Entry, ...]) -> dict[str, Any]:
    return {
        "name": side.name,
        "answers": len(side.entries),
        "modes": dict(side.modes),
        "postures": dict(side.postures),
        "without_counterpart": [entry.place for entry in alone],
    }


def _rate(k: int, n: int) -> dict[str, Any]:
    return {
        "k": k,
        "n": n,
        "below": clopper_pearson_upper(k, n) if n else None,
        "confidence": CONFIDENCE,
        "text": rate_text(k, n),
    }


def _spread(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else {"median": spread.median, "least": spread.least}


def _pair(pair: Pair) -> dict[str, Any]:
    comparison = pair.comparison
    return {
        "a": {"place": pair.left.place, "output": pair.left.digest},
        "b": {"place": pair.right.place, "output": pair.right.digest},
        "request": pair.left.key,
        "fork_tokens": comparison.fork_tokens,
        "fork_characters": comparison.fork_characters,
        "margin_nats": comparison.margin,
        "margin": Closeness.of(comparison.margin).value,
        "logprob_delta_nats": comparison.logprob_delta,
        "edit_similarity": pair.similarity,
        "semantic_similarity": pair.semantic,
        "results": None
        if pair.extracted is None
        else {"a": pair.extracted[0], "b": pair.extracted[1], "flipped": pair.flipped},
    }
