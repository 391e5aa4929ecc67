"""From the answers of the ladder to a finding per suspect. Pure.

A suspect is blamed only when its condition parts the answers more than repeats within a condition differ
(`app.diagnose.attribution`). What was not tried is untested, with the reason; what was tried too seldom is undecided.
Answers that part from their own repeats where the choice was clear are a fault's, and belong to no layer.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from app.determinism.divergence import Closeness
from app.diagnose.attribution import Attribution, Stratum, attribute
from app.diagnose.findings import Count, Finding, State, Suspect
from app.diagnose.forks import CHANCE, Forks, clear_fork, gather, medoid, nearest
from app.diagnose.ladder import Record
from app.diagnose.rungs import Rung
from app.diagnose.sample import Sample, Setting, fork_of, largest_delta, prefix_distance, same_bits, same_tokens

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the ladder brought, and what is known of the server.

    ``postures`` holds the digests that each replica answered with. ``exact`` says that lengths of prompts are known.
    """

    records: Mapping[Rung, Record]
    postures: Mapping[int, frozenset[str]]
    exact: bool
    logprobs: bool
    sampled: bool
    replicas: int
    missing: Mapping[Rung, str]
    """Why a rung was left out, for those that were."""

    def of(self, rung: Rung) -> list[Sample]:
        """The answers of a rung."""
        return self.records[rung].samples if rung in self.records else []

    def gap(self, rung: Rung) -> str:
        """Why a rung has too few answers."""
        record = self.records.get(rung)
        if record is None:
            return self.missing.get(rung, "it was not tried")
        return record.reason or (record.troubles[-1] if record.troubles else "it brought no answers to compare")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding per suspect, in the order of the layers, and the forks of the run."""

    findings: tuple[Finding, ...]
    forks: Forks

    def of(self, suspect: Suspect) -> Finding | None:
        """The finding on a suspect; None where it does not apply."""
        return next((finding for finding in self.findings if finding.suspect is suspect), None)

    @property
    def diverged(self) -> bool:
        """Whether tokens changed anywhere."""
        return any(finding.tokens.k for finding in self.findings)


def judge(evidence: Evidence) -> Verdict:
    """The verdict on every suspect."""
    # An answer that its own repeats contradict is found without knowing anything of the layers.
    odd = _odd(evidence)
    content = _content(_Clean(evidence, frozenset(map(id, odd))))
    fault, faulty = _fault(evidence, content)
    clean = _Clean(evidence, frozenset(map(id, (*odd, *faulty))))
    forks = gather(
        group for rungs in _COMPARED for group in _groups(_of_one_posture(evidence, rungs), _prompt).values()
    )
    replica = _replica(clean)
    findings = [
        content,
        _shape(clean, content),
        _cache(clean),
        _kv(clean),
        _run_to_run(clean),
        *replica,
        _ties(evidence, forks, others=[content, fault, *replica]),
        *_sampler(clean),
        fault,
    ]
    return Verdict(tuple(findings), forks)


_COMPARED: Final = ((Rung.ALONE, Rung.REPLICA), (Rung.BATCH,), (Rung.CACHE,), (Rung.KV,))
"""Rungs whose answers to one prompt should be equal, and so tell of forks."""


@dataclass(frozen=True, slots=True)
class _Clean:
    """The evidence without the answers of a fault."""

    evidence: Evidence
    faulty: frozenset[int]

    def of(self, rung: Rung) -> list[Sample]:
        return [sample for sample in self.evidence.of(rung) if id(sample) not in self.faulty]

    @property
    def alone(self) -> dict[int, list[Sample]]:
        """The cold answers given alone to each of the probed prompts."""
        return _groups((*self.of(Rung.ALONE), *filter(_is_alone, self.of(Rung.BATCH))), _prompt)


def _content(clean: _Clean) -> Finding:
    """Other contents in a batch of the same shape."""
    suspect, batched = Suspect.NEIGHBOUR_CONTENT, _batched(clean.of(Rung.BATCH))
    if not clean.evidence.exact:
        reason = "the server tells no token ids, so neighbours of the same length with other content cannot be made"
        return Finding(suspect, State.UNTESTED, reason)
    cells = _groups(batched, lambda sample: (sample.prompt, sample.setting.size))
    pairs = [pair for cell in cells.values() for pair in _against(cell, lambda sample: sample.setting.content)]
    if not pairs:
        return Finding(suspect, State.UNTESTED, clean.evidence.gap(Rung.BATCH))
    attribution = attribute(_strata(cells.values(), lambda sample: sample.setting.content))
    what = "other contents in batches of the same shape"
    found = _finding(suspect, pairs, attribution, what)
    if found.state is State.UNDECIDED and all(_one_for_all(cell) for cell in cells.values()):
        reason = f"{what}: some answers differ, but each content brought the answer of the others too"
        return replace(found, state=State.NOT_SEEN, reason=reason)
    return found


def _one_for_all(cell: Sequence[Sample]) -> bool:
    """Whether all contents of a batch brought one and the same answer, next to others that each may have brought.

    A batch whose prompts did not reach the engine at one moment is computed in another shape, so now and then an answer
    differs from its own repeats. Contents that change an answer would change it each time.
    """
    first, *rest = _groups(cell, lambda sample: sample.setting.content).values()
    return any(all(any(same_bits(one, other) for other in several) for several in rest) for one in first)


def _shape(clean: _Clean, content: Finding) -> Finding:
    """Batches against the answer given alone. Where contents matter, between batches of several sizes alone."""
    suspect, batched, alone = Suspect.BATCH_SHAPE, _batched(clean.of(Rung.BATCH)), clean.alone
    references = {prompt: medoid(samples) for prompt, samples in alone.items()}
    pairs = [(references[sample.prompt], sample) for sample in batched if sample.prompt in references]
    if not pairs:
        return Finding(suspect, State.UNTESTED, clean.evidence.gap(Rung.BATCH))
    sizes = sorted({sample.setting.size for sample in batched})
    what = f"in batches of {', '.join(map(str, sizes))} against the answer given alone"
    if not content.acts:
        every = [[*alone[prompt], *group] for prompt, group in _groups(batched, _prompt).items() if prompt in alone]
        return _finding(suspect, pairs, attribute(_strata(every, lambda sample: sample.setting.size)), what)
    # Contents go with the batch's size, so whole contents are exchanged between sizes, not answers; and more neighbours
    # have more to say, so only what comes before an answer took another token is compared.
    strata = []
    for group in _groups(batched, _prompt).values():
        units: dict[Hashable, list[list[Sample]]] = {}
        for (size, _), cell in _groups(group, lambda sample: (sample.setting.size, sample.setting.content)).items():
            units.setdefault(size, []).append(cell)
        strata.append(Stratum.of(units))
    return _finding(suspect, pairs, attribute(strata, apart=prefix_distance), what, "not beyond what its contents do")


def _cache(clean: _Clean) -> Finding:
    """With a prefix cache that holds the prompt, against one that does not."""
    suspect, what = Suspect.PREFIX_CACHE, "answered from the prefix cache against computed anew"
    groups = _groups(clean.of(Rung.CACHE), _prompt)
    if any(sample.cached and not sample.setting.warm for sample in clean.of(Rung.CACHE)):
        reason = "prompts with a fresh cache_salt came from the cache all the same: the server does not honour it"
        return Finding(suspect, State.UNTESTED, reason)
    used = {prompt: group for prompt, group in groups.items() if any(_hit(sample) for sample in group)}
    if not used and any(sample.setting.warm for group in groups.values() for sample in group):
        reason = "nothing came from a prefix cache: it is off, or these prompts are too short for it"
        return Finding(suspect, State.UNTESTED, reason)
    kept = [[sample for sample in group if _hit(sample) or not sample.setting.warm] for group in used.values()]
    pairs = [pair for group in kept for pair in _against(group, lambda sample: sample.setting.warm)]
    if not pairs:
        return Finding(suspect, State.UNTESTED, clean.evidence.gap(Rung.CACHE))
    found = _finding(suspect, pairs, attribute(_strata(kept, lambda sample: sample.setting.warm)), what)
    if found.state is State.NOT_SEEN and any(sample.cached is None for group in kept for sample in group):
        told = "whether the cache was hit the server does not tell (vLLM does with --enable-prompt-tokens-details)"
        return replace(found, state=State.UNDECIDED, reason=f"{found.reason}; {told}")
    return found


def _kv(clean: _Clean) -> Finding:
    """Beside neighbours whose KV is long, against as many whose KV is short."""
    suspect, groups = Suspect.KV_LENGTH, _groups(clean.of(Rung.KV), _prompt)
    pairs = [pair for group in groups.values() for pair in _against(group, lambda sample: sample.setting.kv)]
    if not pairs:
        return Finding(suspect, State.UNTESTED, clean.evidence.gap(Rung.KV))
    found = attribute(_strata(groups.values(), lambda sample: sample.setting.kv))
    return _finding(suspect, pairs, found, "beside neighbours with a long KV against as many with a short one")


def _run_to_run(clean: _Clean) -> Finding:
    """Repeats alone with a cold cache. Nothing changes, so a difference needs no test."""
    suspect, what = Suspect.RUN_TO_RUN, "repeats, each alone with a cold cache"
    pairs = [pair for group in clean.alone.values() for pair in _repeats(group)]
    if not pairs:
        return Finding(suspect, State.UNTESTED, clean.evidence.gap(Rung.ALONE))
    return _finding(suspect, pairs, None, what)


def _replica(clean: _Clean) -> list[Finding]:
    """Other servers. With the same posture it is the hardware or the build, with another the configuration."""
    postures, count = clean.evidence.postures, clean.evidence.replicas
    if not count:
        return [Finding(Suspect.REPLICA, State.UNTESTED, "only one replica was named (--replica URL adds another)")]
    strange = _strange(clean.evidence)
    alike = {*range(1, count + 1)} - strange
    told = {0, *alike} <= postures.keys()
    findings = []
    if alike:
        posture = "the same posture" if told else "a posture that it does not tell"
        findings.append(_others(clean, Suspect.REPLICA, alike, posture))
    if strange:
        findings.append(_others(clean, Suspect.CONFIGURATION, strange, "another posture"))
    return findings


def _strange(evidence: Evidence) -> set[int]:
    """The replicas whose posture is known not to be the first's."""
    own = evidence.postures.get(0)
    return {each for each, posture in evidence.postures.items() if own is not None and posture != own}


def _of_one_posture(evidence: Evidence, rungs: Sequence[Rung]) -> list[Sample]:
    strange = _strange(evidence)
    return [sample for rung in rungs for sample in evidence.of(rung) if sample.setting.replica not in strange]


def _others(clean: _Clean, suspect: Suspect, replicas: AbstractSet[int], posture: str) -> Finding:
    """Some of the other servers, against the first."""
    answers = [sample for sample in clean.of(Rung.REPLICA) if sample.setting.replica in replicas]
    groups = _groups((*(sample for group in clean.alone.values() for sample in group), *answers), _prompt)
    pairs = [pair for group in groups.values() for pair in _against(group, lambda sample: sample.setting.replica)]
    if not answers or not pairs:
        return Finding(suspect, State.UNTESTED, clean.evidence.gap(Rung.REPLICA))
    found = attribute(_strata(groups.values(), lambda sample: sample.setting.replica))
    return _finding(suspect, pairs, found, f"answers of another replica, with {posture}")


def _sampler(clean: _Clean) -> list[Finding]:
    """Repeats that sample without a seed; where nothing is sampled there is no such suspect."""
    if not clean.evidence.sampled:
        return []
    groups = _groups(clean.of(Rung.SAMPLER), _prompt)
    pairs = [pair for group in groups.values() for pair in _repeats(group)]
    if not pairs:
        return [Finding(Suspect.SAMPLER, State.UNTESTED, clean.evidence.gap(Rung.SAMPLER))]
    return [_finding(Suspect.SAMPLER, pairs, None, "repeats that sample without a seed, each alone with a cold cache")]


def _ties(evidence: Evidence, forks: Forks, others: Sequence[Finding]) -> Finding:
    """Whether answers part where two tokens were as good as equal.

    ``others`` part answers anywhere, and so at a tie now and then: where one acts, ties must be more than that.
    """
    suspect, nothing = Suspect.TIES, _without_margins(evidence)
    if nothing is not None or not forks.tokens:
        return Finding(suspect, State.UNTESTED, nothing or evidence.gap(Rung.ALONE))
    exposed = f"{forks.exposed} of {forks.tokens} tokens had a margin of at most {forks.limit:.2g} nats"
    if not forks.forks:
        return Finding(suspect, State.NOT_SEEN, f"no answers of one posture forked; {exposed}")
    if not forks.judged:
        return Finding(suspect, State.UNDECIDED, f"no margin is known where answers fork; {exposed}")
    count = Count(forks.count(Closeness.TIE), forks.judged)
    reason = f"forks where the two likeliest tokens were within {forks.limit:.2g} nats; {exposed}"
    present = count.k > 0 and (forks.by_chance <= CHANCE or not any(other.acts for other in others))
    return Finding(suspect, State.PRESENT if present else State.NOT_SEEN, reason, count, count)


def _odd(evidence: Evidence) -> list[Sample]:
    """Batched answers that part from the repeats of their own batch where the choice was clear.

    Of those that contradict each other, the one nearest to what the prompt got in other contents is believed; unless
    neither a repeat nor the other contents bear it out.
    """
    odd: list[Sample] = []
    if evidence.sampled:
        return odd
    wider = _groups(_batched(evidence.of(Rung.BATCH)), lambda sample: (sample.prompt, sample.setting.size))
    for group in wider.values():
        for cell in _groups(group, lambda sample: sample.setting.content).values():
            if any(clear_fork(one, other) for one in cell for other in cell if one is not other):
                believed = nearest(cell, group)
                contradicting = [sample for sample in cell if clear_fork(believed, sample)]
                alone = len(contradicting) == len(cell) - 1 and clear_fork(medoid(group), believed)
                odd += [*contradicting, *([believed] if alone else [])]
    return odd


def _fault(evidence: Evidence, content: Finding) -> tuple[Finding, list[Sample]]:
    """Answers that part from their own repeats where the choice was clear.

    Where contents of a batch matter they do that too, so then only answers given alone are looked at.
    """
    every = [sample for rung in Rung for sample in evidence.of(rung)]
    alone = [sample for sample in every if sample.setting.size == 1 and sample.setting.seeded]
    groups = [*_groups(alone, lambda sample: (sample.prompt, sample.setting)).values()]
    if not content.acts:
        batched = [*_batched(evidence.of(Rung.BATCH)), *evidence.of(Rung.KV)]
        groups += _groups(batched, lambda sample: (sample.prompt, sample.setting._replace(content=0))).values()
    pairs = [pair for group in groups for pair in _repeats(group)]
    faulty = [sample for reference, sample in pairs if clear_fork(reference, sample)]
    nothing = _without_margins(evidence)
    if nothing is not None or not pairs:
        return Finding(Suspect.FAULT, State.UNTESTED, nothing or evidence.gap(Rung.ALONE)), []
    count = Count(len(faulty), len(pairs))
    if not faulty and any(fork.margin is None for pair in pairs if (fork := fork_of(*pair)) is not None):
        reason = "answers part from their own repeats where no margin is known"
        return Finding(Suspect.FAULT, State.UNDECIDED, reason, count, count), []
    reason = "answers that part from their own repeats where the choice was clear, which no rounding explains"
    return Finding(Suspect.FAULT, State.PRESENT if faulty else State.NOT_SEEN, reason, count, count), faulty


def _without_margins(evidence: Evidence) -> str | None:
    """Why margins say nothing here; None where they do."""
    if evidence.sampled:
        return "a sampled token need not be the likeliest, so margins say nothing"
    return None if evidence.logprobs else "the answers hold no logprobs, so no margin is known"


def _finding(
    suspect: Suspect,
    pairs: Sequence[tuple[Sample, Sample]],
    found: Attribution | None,
    what: str,
    because: str = "but no more than repeats under one condition do",
) -> Finding:
    """The finding on pairs of reference and answer."""
    tokens = Count(sum(not same_tokens(*pair) for pair in pairs), len(pairs))
    bits = Count(sum(not same_bits(*pair) for pair in pairs), len(pairs))
    known = [delta for pair in pairs if (delta := largest_delta(*pair)) is not None]
    state, reason = State.PRESENT if tokens.k else State.LOGPROBS_ONLY, what
    if not bits.k:
        state = State.NOT_SEEN
    elif found is not None and not found.blamed:
        state = State.NOT_SEEN if found.decided else State.UNDECIDED
        reason = f"{what}: they differ, {because if found.decided else _TOO_FEW}"
    return Finding(suspect, state, reason, tokens, bits, max(known, default=None), found)


_TOO_FEW: Final = "but too few were compared to tell that from chance"


def _groups(samples: Iterable[Sample], key: Callable[[Sample], K]) -> dict[K, list[Sample]]:
    groups: dict[K, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(key(sample), []).append(sample)
    return groups


def _strata(groups: Iterable[Sequence[Sample]], label: Callable[[Sample], Hashable]) -> list[Stratum]:
    """One stratum per group, in which each answer is a unit."""
    return [
        Stratum.of({name: [[sample] for sample in several] for name, several in _groups(group, label).items()})
        for group in groups
    ]


def _against(group: Sequence[Sample], label: Callable[[Sample], int]) -> list[tuple[Sample, Sample]]:
    """Every answer of the later conditions, with the reference of the first; none where there is one condition."""
    conditions = _groups(group, label)
    first, *rest = sorted(conditions)
    reference = medoid(conditions[first])
    return [(reference, sample) for other in rest for sample in conditions[other]]


def _repeats(group: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Every answer but the reference, with the reference."""
    reference = medoid(group)
    return [(reference, sample) for sample in group if sample is not reference]


def _batched(samples: Iterable[Sample]) -> list[Sample]:
    return [sample for sample in samples if not _is_alone(sample)]


def _is_alone(sample: Sample) -> bool:
    return sample.setting == Setting()


def _prompt(sample: Sample) -> int:
    return sample.prompt


def _hit(sample: Sample) -> bool:
    """Whether an answer came from the prefix cache, as far as the server tells."""
    return sample.setting.warm and sample.cached != 0
