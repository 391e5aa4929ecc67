"""The answers of a run by what was around them, each beside the answer that it is compared with. Pure.

A reference is the medoid of the answers that were given alone with a cold cache to the same prompt. Only the rung of
the neighbours' length has another: there everything runs in a batch, and the reference is the medoid of those beside
short neighbours, so that nothing but the length is changed. Every answer counts here, a fault's too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from app.diagnose.forks import medoid
from app.diagnose.rungs import Rung
from app.diagnose.sample import Sample, Setting
from app.diagnose.verdict import Evidence

Pair = tuple[Sample, Sample]
"""A reference and the answer that is compared with it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Answers under one condition, and with what each is compared. Holds one pair at least."""

    name: str
    pairs: tuple[Pair, ...]


def conditions(evidence: Evidence) -> tuple[Condition, ...]:
    """Those under which anything can be compared, repeats alone first."""
    named = (Condition(name, tuple(pairs)) for name, pairs in _named(evidence))
    return tuple(condition for condition in named if condition.pairs)


def alone(evidence: Evidence) -> dict[int, list[Sample]]:
    """The answers given alone with a cold cache, by prompt."""
    every = chain.from_iterable(evidence.of(rung) for rung in (Rung.ALONE, Rung.BATCH, Rung.CACHE))
    return _by_prompt(sample for sample in every if sample.setting == Setting())


def _named(evidence: Evidence) -> Iterator[tuple[str, Iterable[Pair]]]:
    references = {prompt: medoid(samples) for prompt, samples in alone(evidence).items()}
    yield "alone, repeated", _repeats(alone(evidence), references)
    yield "from the cache", _pairs(references, filter(_hit, evidence.of(Rung.CACHE)))
    batched = [sample for sample in evidence.of(Rung.BATCH) if sample.setting.size > 1]
    for size in sorted({sample.setting.size for sample in batched}):
        yield f"in a batch of {size}", _pairs(references, (each for each in batched if each.setting.size == size))
    yield "beside long neighbours", _beside_long(evidence.of(Rung.KV))
    for replica in sorted({sample.setting.replica for sample in evidence.of(Rung.REPLICA)}):
        answered = [sample for sample in evidence.of(Rung.REPLICA) if sample.setting.replica == replica]
        yield f"from replica {replica + 1}", _pairs(references, answered)
    yield "without a seed", _pairs(references, evidence.of(Rung.SAMPLER))


def _repeats(groups: dict[int, list[Sample]], references: dict[int, Sample]) -> Iterator[Pair]:
    for prompt, samples in groups.items():
        reference = references[prompt]
        yield from ((reference, sample) for sample in samples if sample is not reference)


def _pairs(references: dict[int, Sample], samples: Iterable[Sample]) -> Iterator[Pair]:
    return ((references[sample.prompt], sample) for sample in samples if sample.prompt in references)


def _beside_long(samples: Iterable[Sample]) -> Iterator[Pair]:
    for several in _by_prompt(samples).values():
        shortest = min(sample.setting.kv for sample in several)
        reference = medoid([sample for sample in several if sample.setting.kv == shortest])
        yield from ((reference, sample) for sample in several if sample.setting.kv > shortest)


def _hit(sample: Sample) -> bool:
    """Whether it came from the prefix cache, as far as the server tells."""
    return sample.setting.warm and sample.cached != 0


def _by_prompt(samples: Iterable[Sample]) -> dict[int, list[Sample]]:
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.prompt, []).append(sample)
    return groups
