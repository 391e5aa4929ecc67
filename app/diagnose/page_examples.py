"""Some of the forks with their texts: the shared beginning, and both continuations side by side. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from app.determinism.divergence import Closeness, first_difference
from app.determinism.output import Choice
from app.diagnose.conditions import conditions
from app.diagnose.markup import element, safe
from app.diagnose.plot import prompt_name
from app.diagnose.report import Report
from app.diagnose.sample import Fork, Sample, fork_of, same_tokens

EXAMPLES: Final = 10
CHARACTERS: Final = 2_000
"""Characters shown of a prompt, of a beginning, and of each continuation."""

_WORST_FIRST: Final = (Closeness.CLEAR, Closeness.UNKNOWN, Closeness.NEAR, Closeness.TIE)
_MEANING: Final = {
    Closeness.TIE: "a tie, which rounding turns",
    Closeness.NEAR: "near",
    Closeness.CLEAR: "clear, which no rounding turns",
    Closeness.UNKNOWN: "margin not known",
}


@dataclass(frozen=True, slots=True)
class Example:
    """Two answers to one prompt that part; ``fork`` is None where the answers do not tell their tokens."""

    condition: str
    reference: Sample
    sample: Sample
    fork: Fork | None
    kind: Closeness


def examples(report: Report) -> tuple[Example, ...]:
    """Different forks of every condition in turn, the clearest of each first, `EXAMPLES` at most."""
    queues: list[list[Example]] = []
    seen: set[object] = set()
    for condition in conditions(report.evidence):
        found = []
        for reference, sample in condition.pairs:
            if same_tokens(reference, sample):
                continue
            fork = fork_of(reference, sample)
            kind = Closeness.UNKNOWN if fork is None else report.verdict.forks.closeness(fork)
            same = (sample.prompt, sample.choice.flow) if fork is None else (fork.prompt, fork.token, fork.taken)
            if same not in seen:
                seen.add(same)
                found.append(Example(condition.name, reference, sample, fork, kind))
        queues.append(sorted(found, key=lambda example: _WORST_FIRST.index(example.kind)))
    longest = max(map(len, queues), default=0)
    taken = [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]
    return tuple(taken[:EXAMPLES])


def shown(report: Report, example: Example) -> Iterator[str]:
    """An example as markup."""
    yield f"<details>\n<summary>{safe(_facts(report, example))}</summary>\n"
    prompt = prompt_name(report, example.sample.prompt)
    yield f"<p class=soft>The prompt</p>\n{_pre(safe(_beginning(prompt)))}"
    before, rests = _parted(example.reference.choice, example.sample.choice)
    yield f"<p class=soft>Both answers begin</p>\n{_pre(safe(_ending(before)) or '<i>(nothing is shared)</i>')}"
    first = "beside short neighbours" if example.reference.setting.kv else "alone"
    sides = zip((first, example.condition), "ab", rests, strict=True)
    yield element("div", *(_side(*side) for side in sides), class_="both")
    yield "\n</details>\n"


def _facts(report: Report, example: Example) -> str:
    where = "prompt" if example.sample.prompt < len(report.deployment.prompts) else "long prompt"
    number = example.sample.prompt + 1 - (where != "prompt") * len(report.deployment.prompts)
    facts = [f"{where} {number}, {example.condition}"]
    if example.fork is not None:
        facts.append(f"fork at token {example.fork.token}")
        if example.fork.margin is not None:
            facts.append(f"margin {example.fork.margin:.2g} nats")
    # A sampled token need not be the likeliest, so how close it was explains nothing.
    return " · ".join(facts if report.evidence.sampled else [*facts, _MEANING[example.kind]])


def _parted(left: Choice, right: Choice) -> tuple[str, tuple[tuple[str, str], tuple[str, str]]]:
    """The shared beginning, and for each side what it took there and what follows."""
    if left.tokens is not None and right.tokens is not None:
        at = first_difference(left.tokens, right.tokens)
        rests = [("".join(side[at : at + 1]), "".join(side[at + 1 :])) for side in (left.tokens, right.tokens)]
        return "".join(left.tokens[:at]), (rests[0], rests[1])
    at = first_difference(left.flow, right.flow)
    rests = [(side[at : at + 1], side[at + 1 :]) for side in (left.flow, right.flow)]
    return left.flow[:at], (rests[0], rests[1])


def _side(name: str, style: str, rest: tuple[str, str]) -> str:
    taken, after = rest
    # One answer may be the other's beginning: then its end is where they part.
    mark = element("mark", safe(taken) or "(ends)")
    body = element("span", mark, safe(_beginning(after)), class_=style)
    return element("div", element("b", safe(name)), _pre(body))


def _beginning(text: str) -> str:
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]} \u2026"


def _ending(text: str) -> str:
    return text if len(text) <= CHARACTERS else f"\u2026 {text[-CHARACTERS:]}"


def _pre(markup: str) -> str:
    # A line break at the very start of a pre is dropped by every reader of HTML, unless another stands before it.
    return f"<pre>\n{markup}</pre>\n"
