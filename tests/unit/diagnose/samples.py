"""Answers, and what a ladder brings from a made-up server, for tests of the diagnosis. Nothing is asked of anybody.

An answer's logprobs and noise are small multiples of a power of two, so that what tests compute from them is exact.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from app.determinism.output import Choice
from app.diagnose.discovery import Deployment
from app.diagnose.ladder import Record
from app.diagnose.material import LONG_PROMPTS, Material
from app.diagnose.rungs import LEAST_ROUNDS, Extent, Rung, Salts
from app.diagnose.sample import Sample, Setting
from app.diagnose.verdict import Evidence

PROBES: Final = 4
LENGTH: Final = 12
CLOSE: Final = 5
"""The token of `plain` answers whose choice is close."""

TIE, CLEAR = 0.0625, 2.0
_STEP: Final = 1 / 64

Server = Callable[[int, Setting, int], Choice]
"""What it answers to a prompt under a setting; the last argument counts the answers under it from 0."""

Cached = Callable[[Setting, int], int | None]
"""The cached tokens of which a server tells, by setting and count."""


def told(
    ids: Sequence[int] | None = None,
    *,
    tokens: Sequence[str] | None = None,
    text: str = "",
    logprobs: Iterable[float] | None = None,
    margins: Iterable[float] | None = None,
) -> Choice:
    """A choice that tells so much of itself and no more."""
    return Choice(
        position=0,
        text=text,
        token_ids=None if ids is None else array("I", ids),
        tokens=None if tokens is None else tuple(tokens),
        logprobs=None if logprobs is None else array("d", logprobs),
        margins=None if margins is None else array("d", margins),
        finish_reason="length",
    )


def sample(choice: Choice, *, prompt: int = 0, setting: Setting | None = None, cached: int | None = None) -> Sample:
    """An answer given alone, or under another setting."""
    return Sample(prompt, Setting() if setting is None else setting, choice, cached=cached)


def plain(prompt: int = 0) -> Choice:
    """An answer of `LENGTH` tokens, each a clear choice but the one at `CLOSE`."""
    margins = [TIE if place == CLOSE else CLEAR for place in range(LENGTH)]
    return told(range(100 * prompt, 100 * prompt + LENGTH), logprobs=[-0.5] * LENGTH, margins=margins)


def shaken(choice: Choice, key: object, steps: int = 3) -> Choice:
    """With other last bits: every logprob is moved by -steps to +steps 64ths of a nat. Equal keys, equal noise."""
    random = Random(repr(key))  # noqa: S311 - noise of a test
    moved = array("d", (each + _STEP * random.randint(-steps, steps) for each in choice.logprobs or ()))
    return choice._replace(logprobs=moved)


def parted(choice: Choice, at: int = CLOSE, other: int = 7, margin: float | None = None) -> Choice:
    """With other tokens from a place on; ``margin`` replaces the one there."""
    ids, margins = array("I", choice.token_ids or ()), array("d", choice.margins or ())
    for place in range(at, len(ids)):
        ids[place] += 1000 * other
    if margin is not None:
        margins[at] = margin
    return choice._replace(token_ids=ids, margins=margins)


def silent(choice: Choice) -> Choice:
    """Without logprobs."""
    return choice._replace(logprobs=None, margins=None)


def material(probes: int = PROBES, *, length: int = 20, longs: Sequence[int] = LONG_PROMPTS) -> Material:
    """So many prompts of that length in token ids, and the long ones."""
    prompts = [tuple(range(1000 * place, 1000 * place + length)) for place in range(1, probes + 1)]
    return Material.of(prompts, range(50_000, 50_090), longs)


def clean(prompt: int, _setting: Setting, _turn: int) -> Choice:
    """A server that always answers alike."""
    return plain(prompt)


def tells_hits(setting: Setting, _turn: int) -> int:
    """A server with a prefix cache that tells what came from it."""
    return 128 if setting.warm else 0


def climbed(
    server: Server,
    rungs: Iterable[Rung],
    *,
    rounds: Mapping[Rung, int] | None = None,
    sizes: tuple[int, ...] = (2, 4, 8),
    replicas: int = 1,
    cached: Cached = tells_hits,
) -> dict[Rung, Record]:
    """What the ladder brings from a server: the requests are the real ones, the answers the server's."""
    extent, asked, salts = Extent(sizes, tuple(rungs), replicas), material(), Salts("run")
    counts: dict[tuple[int, Setting], int] = {}
    records = {}
    for rung in extent.rungs:
        record = records[rung] = Record(rounds=(rounds or LEAST_ROUNDS)[rung])
        for step in (step for number in range(record.rounds) for step in extent.round(rung, number, asked, salts)):
            record.requests += 1
            for probe in step.probes:
                turn = counts[probe, step.setting] = counts.get((probe, step.setting), -1) + 1
                choice = server(probe, step.setting, turn)
                record.samples.append(Sample(probe, step.setting, choice, cached=cached(step.setting, turn)))
    return records


WHOLE: Final = (Rung.ALONE, Rung.BATCH, Rung.CACHE, Rung.KV, Rung.REPLICA)
"""The rungs of a run that samples nothing."""


def evidence(
    server: Server = clean,
    rungs: Iterable[Rung] = WHOLE,
    *,
    sizes: tuple[int, ...] = (2, 4, 8),
    replicas: int = 1,
    cached: Cached = tells_hits,
    **changes: Any,
) -> Evidence:
    """What is known of a server after the least rounds of these rungs; ``changes`` are members of the evidence."""
    whole = Evidence(
        records=climbed(server, rungs, sizes=sizes, replicas=replicas, cached=cached),
        postures={replica: frozenset({"p-1"}) for replica in range(replicas + 1)},
        exact=True,
        logprobs=True,
        sampled=False,
        replicas=replicas,
        missing={},
    )
    return replace(whole, **changes)


def deployment(**changes: Any) -> Deployment:
    """A server as it was found: stock vLLM with a context of 4096 tokens, 20 tokens a second."""
    found = Deployment(
        url="http://server",
        model="small",
        prompts=("one", "two", "three", "four"),
        context=4096,
        token_seconds=0.05,
        gateway=False,
        alone_proven=False,
        logprobs=True,
        exact=True,
        unsaid=(),
        replica=None,
        posture="p-1",
    )
    return replace(found, **changes)
