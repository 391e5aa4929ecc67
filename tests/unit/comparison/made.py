"""Lines, records and a finding, made rather than answered by anyone."""

import json
from typing import Any

from app.comparison.extraction import by_regex
from app.comparison.finding import Finding, find
from app.comparison.jsonl import Record, read_lines
from app.comparison.pairing import sides
from app.determinism.output import CHAT_PATH

Tops = list[tuple[str, list[float]]]
"""Tokens, each with the logprobs of the likeliest, its own first."""

RULE = r"answer is (\w+)"


def answer(text: str, tops: Tops | None = None, **choice: Any) -> dict[str, Any]:
    """A chat answer of one choice; with ``tops`` it carries logprobs."""
    whole: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
        **choice,
    }
    if tops is not None:
        content = [
            {
                "token": token,
                "logprob": likeliest[0],
                "top_logprobs": [{"token": str(n), "logprob": x} for n, x in enumerate(likeliest)],
            }
            for token, likeliest in tops
        ]
        whole["logprobs"] = {"content": content}
    return {"id": "x", "object": "chat.completion", "model": "m", "choices": [whole]}


def request(text: str, **members: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], "temperature": 0, **members}


def line(asked: str, answered: dict[str, Any] | None, **members: Any) -> dict[str, Any]:
    """One line of our format."""
    whole = {"path": CHAT_PATH, "request": request(asked), **members}
    return whole if answered is None else {**whole, "answer": answered}


def written(*lines: dict[str, Any]) -> bytes:
    """A file."""
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def read(*lines: dict[str, Any], name: str = "a.jsonl") -> list[Record]:
    """A file's records."""
    return list(read_lines(written(*lines).splitlines(keepends=True), name))


def finding(left: list[dict[str, Any]], right: list[dict[str, Any]], **options: Any) -> Finding:
    """Two files compared."""
    first, second = sides(("a.jsonl", read(*left)), ("b.jsonl", read(*right)), any_model=False)
    return find(first, second, **options)


def example() -> Finding:
    """A finding with one of everything: a match, a tie, a flip, hostile text, a failure, two left alone."""
    hostile = "<script>alert(1)</script> \x1b[31m \u202ered & 'blue'"
    tie: Tops = [("The ", [-0.1, -3.0]), ("answer is ", [-0.2, -4.0]), ("yes", [-0.7, -0.8])]
    facts = {"mode": "standard", "posture": "p-1"}
    left = [
        line("same?", answer("same"), determinism=facts),
        line("yes or no?", answer("The answer is yes", tie), determinism=facts),
        line("<b>which colour</b>?", answer(f"{hostile} it is"), determinism=facts),
        line("fails?", None, error="HTTP 503: full", determinism=facts),
        line("only in A?", answer("a"), determinism=facts),
    ]
    other: Tops = [*tie[:2], ("no", [-0.75, -0.75])]
    right = [
        line("only in B?", answer("b"), determinism={**facts, "mode": "isolated"}),
        line("<b>which colour</b>?", answer(hostile), determinism={**facts, "mode": "isolated"}),
        line("fails?", answer("it does not"), determinism={**facts, "mode": "isolated"}),
        line("yes or no?", answer("The answer is no", other), determinism={**facts, "mode": "isolated"}),
        line("same?", answer("same"), determinism={**facts, "mode": "isolated"}),
    ]
    return finding(left, right, extraction=by_regex(RULE), rule=RULE)
