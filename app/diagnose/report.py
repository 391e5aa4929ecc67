"""The whole of what a run found, as one value, and the sentences that terminal, JSON and page share. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from app.determinism.statistics import rate_text
from app.diagnose.advice import Advice
from app.diagnose.cure import Cure
from app.diagnose.discovery import Deployment
from app.diagnose.findings import Finding, Layer, State, Suspect
from app.diagnose.investigation import Investigation
from app.diagnose.planning import Course
from app.diagnose.verdict import Evidence, Verdict

EXIT_FINE: Final = 0
EXIT_DIVERGED: Final = 1
EXIT_NOT_MEASURED: Final = 2
EXIT_INTERRUPTED: Final = 130

TITLES: Final = {
    Suspect.NEIGHBOUR_CONTENT: "what the batch's neighbours say",
    Suspect.BATCH_SHAPE: "the batch's shape",
    Suspect.PREFIX_CACHE: "the prefix cache",
    Suspect.KV_LENGTH: "the neighbours' length (KV split)",
    Suspect.RUN_TO_RUN: "from run to run",
    Suspect.REPLICA: "another replica",
    Suspect.CONFIGURATION: "a replica of another posture",
    Suspect.SAMPLER: "the sampler, without a seed",
    Suspect.TIES: "ties at the forks",
    Suspect.FAULT: "a fault",
}

LAYER_NAMES: Final = {
    Layer.ARCHITECTURE: "architecture",
    Layer.OPERATOR: "operator",
    Layer.FRAMEWORK: "framework",
    Layer.TIES: "tie-breaking",
    Layer.NONE: "",
}


@dataclass(frozen=True, slots=True)
class Report:
    """One run's finding.

    ``seconds`` is what it took; ``left_out`` counts answers of other replicas, by name,
    and ``crowded`` those that shared the engine with other requests than their rung asks for.
    """

    investigation: Investigation
    deployment: Deployment
    course: Course
    evidence: Evidence
    verdict: Verdict
    cures: tuple[Cure, ...]
    advice: Advice
    seconds: float
    left_out: Mapping[str, int] = field(default_factory=dict)
    crowded: int = 0
    interrupted: bool = False

    def exit_code(self, fail_on: str) -> int:
        """130 interrupted; 2 when no suspect was tested; 1 when tokens changed and that is to fail; else 0."""
        if self.interrupted:
            return EXIT_INTERRUPTED
        if all(finding.state is State.UNTESTED for finding in self.verdict.findings):
            return EXIT_NOT_MEASURED
        return EXIT_DIVERGED if fail_on == "diverged" and self.verdict.diverged else EXIT_FINE


def counted(finding: Finding) -> str:
    """The evidence of a finding in figures, with their bounds."""
    if finding.suspect in {Suspect.TIES, Suspect.FAULT}:
        return rate_text(finding.tokens.k, finding.tokens.n) if finding.tokens.n else "-"
    if not finding.tokens.n:
        return "-"
    said = f"tokens {rate_text(finding.tokens.k, finding.tokens.n)}"
    if finding.delta is None:
        return said
    delta = f", by up to {finding.delta:.2g} nats" if finding.delta else ""
    return f"{said}; logprobs {finding.bits.k} of {finding.bits.n}{delta}"


def confidence(finding: Finding) -> str:
    """How sure it is that the condition does it; the exact bound beside a count says how sure a zero is."""
    found = finding.attribution
    if found is None or not finding.bits.k:
        return "-"
    return f"p = {found.p:.2g}" if found.p > found.attainable else f"p \u2264 {found.p:.2g}"


def summary(verdict: Verdict) -> tuple[str, ...]:
    """A sentence per layer."""
    return tuple(_layer(verdict, layer) for layer in Layer if layer is not Layer.NONE)


def _layer(verdict: Verdict, layer: Layer) -> str:
    findings = [finding for finding in verdict.findings if finding.layer is layer]
    name = f"{layer.value} {LAYER_NAMES[layer]}"
    said = {
        State.PRESENT: "present",
        State.LOGPROBS_ONLY: "changes logprobs, no token",
        State.UNDECIDED: "undecided",
        State.NOT_SEEN: "not seen",
    }
    held = {state: [TITLES[finding.suspect] for finding in findings if finding.state is state] for state in said}
    if any(held[state] for state in said if state is not State.NOT_SEEN):
        # Beside what acts, what does not is in the table.
        held[State.NOT_SEEN] = []
    parts = [f"{said[state]} ({', '.join(titles)})" for state, titles in held.items() if titles]
    return f"{name}: {'; '.join(parts) or 'untested'}"


def doubts(report: Report) -> tuple[str, ...]:
    """What must be said beside the findings."""
    said = [f"Not told by the server: {each}." for each in report.deployment.unsaid]
    if not report.deployment.alone_proven:
        said.append(
            "That requests ran alone is an assumption: this server does not confirm it. Other clients' requests "
            "meanwhile would share the batch."
        )
    asked, given = report.investigation.tokens, report.course.tokens
    if asked is not None and given < asked:
        said.append(f"--tokens {asked} does not fit into the model's context: answers have {given} tokens.")
    for name, count in report.left_out.items():
        said.append(f"{count} answers came from {name} and are in no finding: they are another replica's.")
    if report.crowded:
        said.append(
            f"Of {report.crowded} answers the server says that they shared the engine with more or fewer requests than "
            f"their rung asks for; they are in no finding."
        )
    for rung, record in report.evidence.records.items():
        if record.troubles:
            said.append(f"{rung.value}: {len(record.troubles)} requests without an answer ({record.troubles[-1]}).")
        if record.reason:
            said.append(f"{rung.value}: cut short after {record.rounds} rounds, {record.reason}.")
    if report.interrupted:
        said.append("Interrupted: the findings are on what had been answered by then.")
    return tuple(said)
