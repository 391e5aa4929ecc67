"""What a repeat says: its verdict in the metrics, where it forks, how close the choice was, what may have caused it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from app.determinism.divergence import Closeness, Comparison, Verdict, bracket, compare
from app.determinism.mode import DETERMINISTIC_MODES
from app.determinism.output import Output
from app.determinism.similarity import edit_similarity
from app.observation.labels import Cause
from app.observation.metrics import BoundMetrics, Metrics
from app.observation.store import PAIRED_OBSERVATIONS, Cohort, Observation, Reference, Specimen

_NOTHING: Final = Comparison(Verdict.DIVERGED)

Liken = Callable[[Output, Output], None]


def nobody_likens(_reference: Output, _output: Output) -> None:
    """Where no semantic similarity is asked for."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of a diverged output against its reference; see `Specimen` for the members.

    Where ``fork_characters`` is None, ``fork_tokens`` is the start of the block in which they fork, not the fork.
    """

    cause: Cause
    fork_tokens: int | None
    fork_characters: int | None
    margin: float | None
    similarity: float | None


class Judge:
    """Counts repeats. For one thread. ``liken`` is offered every pair that diverged, to look at it elsewhere."""

    def __init__(self, metrics: Metrics, liken: Liken) -> None:
        self._metrics = metrics
        self._liken = liken

    def judge(
        self, cohort: Cohort, reference: Output | None, observation: Observation, output: Output, verdict: Verdict
    ) -> Finding | None:
        """Count a repeat before it is added to its cohort; ``reference`` is the output itself, where memory has it."""
        bound = self._metrics.of(observation.model, observation.mode)
        counted = bound.compared[observation.origin]
        counted.comparisons[verdict].inc()
        counts = cohort.counts
        earlier = counts.observed
        if earlier < PAIRED_OBSERVATIONS:
            counted.pairs.inc(earlier)
            counted.pairs_equal.inc(counts.outputs.get(output.digest, 0))
        is_new = counts.slot(output.digest) not in counts.outputs
        bound.distinct_outputs.observe(counts.distinct + is_new)
        if verdict is Verdict.MATCH:
            if reference is not None and output.has_logprobs:
                self._observe_delta(compare(reference, output))
            return None
        comparison = compare(reference, output) if reference is not None else _NOTHING
        finding = self._find(cohort.reference, reference, comparison, observation, output)
        exemplar = {"request_id": observation.request_id}
        counted.divergences[finding.cause].inc(exemplar=exemplar)
        counted.closeness[Closeness.of(finding.margin)].inc()
        if reference is not None:
            self._liken(reference, output)
        self._observe_fork(bound, comparison, finding, exemplar)
        # One line per distinct output: an alarm must be seen, and a hot prompt must not fill the log.
        if is_new and observation.mode in DETERMINISTIC_MODES:
            _tell(cohort.reference, observation, output, finding)
        return finding

    def second(self, reference: Reference, observation: Observation, output: Output) -> None:
        """Count an answer that came second to a reference of another gateway, and differs from it."""
        counted = self._metrics.of(observation.model, observation.mode).compared[observation.origin]
        finding = self._find(reference, None, _NOTHING, observation, output)
        counted.comparisons[Verdict.DIVERGED].inc()
        counted.divergences[finding.cause].inc(exemplar={"request_id": observation.request_id})
        counted.closeness[Closeness.UNKNOWN].inc()
        if observation.mode in DETERMINISTIC_MODES:
            _tell(reference, observation, output, finding)

    def _find(
        self,
        known: Reference,
        reference: Output | None,
        comparison: Comparison,
        observation: Observation,
        output: Output,
    ) -> Finding:
        cause = _cause(known, observation, output)
        if reference is not None:
            similarity = edit_similarity(reference, output)
            margin = comparison.margin if observation.greedy else None
            return Finding(cause, comparison.fork_tokens, comparison.fork_characters, margin, similarity)
        between = bracket(known.blocks, output.blocks)
        start = between.start if between is not None and between.unit == "tokens" else None
        return Finding(cause, start, None, None, None)

    def _observe_fork(
        self, bound: BoundMetrics, comparison: Comparison, finding: Finding, exemplar: dict[str, str]
    ) -> None:
        # Only what is known to the token: starts of blocks would stand at 0, 64, 128 as if forks were there.
        if comparison.fork_tokens is not None:
            bound.fork_tokens.observe(comparison.fork_tokens, exemplar)
        if finding.margin is not None:
            self._metrics.fork_margin_nats.observe(finding.margin, exemplar)
        if comparison.shared is not None:
            self._metrics.similarity["prefix"].observe(comparison.shared)
        if finding.similarity is not None:
            self._metrics.similarity["edit"].observe(finding.similarity)
        self._observe_delta(comparison)

    def _observe_delta(self, comparison: Comparison) -> None:
        if comparison.logprob_delta is not None:
            self._metrics.logprob_delta_nats.observe(comparison.logprob_delta)


def specimen(
    observation: Observation, output: Output, finding: Finding | None, at: float, text: str | None
) -> Specimen:
    """A distinct output with its circumstances; no finding means that it is the reference."""
    against: Mapping[str, object] = (
        {}
        if finding is None
        else {
            "fork_tokens": finding.fork_tokens,
            "fork_characters": finding.fork_characters,
            "margin": finding.margin,
            "similarity": finding.similarity,
            "cause": finding.cause.value,
        }
    )
    return Specimen(
        digest=output.digest,
        request_id=observation.request_id,
        replica=observation.replica,
        at=at,
        origin=observation.origin.value,
        coresident_peak=observation.coresident_peak,
        cached_tokens=output.cached_tokens,
        tokens=output.tokens,
        text=text,
        **against,  # type: ignore[arg-type]  # a mapping of fields by name
    )


def _tell(reference: Reference, observation: Observation, output: Output, finding: Finding) -> None:
    _log.warning(
        "request %s diverged in mode %s: cohort %s, replica %s, output %s, reference %s, fork %s, %s",
        observation.request_id,
        observation.mode,
        observation.cohort_key[:16],
        observation.replica,
        output.digest,
        reference.digest,
        _place(finding),
        finding.cause.value,
    )


def _place(finding: Finding) -> str:
    if finding.fork_tokens is None:
        return "at an unknown token"
    if finding.fork_characters is None:
        return f"from token {finding.fork_tokens} on"
    return f"at token {finding.fork_tokens}"


def _cause(reference: Reference, observation: Observation, output: Output) -> Cause:
    """The first suspect that holds; the order and its reasons are those of `Cause`."""
    if max(reference.coresident_peak or 1, observation.coresident_peak or 1) > 1:
        return Cause.CO_BATCHED
    if None not in (reference.cached_tokens, output.cached_tokens) and reference.cached_tokens != output.cached_tokens:
        return Cause.CACHE_STATE
    if reference.replica != observation.replica:
        return Cause.OTHER_REPLICA
    return Cause.UNEXPLAINED
