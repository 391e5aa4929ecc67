"""The parts of the page that are tables and sentences, as markup. Pure."""

import json
import shlex
from collections.abc import Iterator
from typing import Any, Final

from app.determinism.output import CHAT_PATH
from app.determinism.statistics import rate_text
from app.diagnose.findings import Finding, State, Suspect
from app.diagnose.markup import element, safe, table
from app.diagnose.plot import Plot
from app.diagnose.report import TITLES, Report, confidence, doubts, summary
from app.diagnose.rungs import Rung

CHANGES: Final = {
    Rung.SAMPLER: "the seed is left out",
    Rung.ALONE: "nothing: each prompt alone, with a cold cache",
    Rung.BATCH: "how many share the batch, and what they say",
    Rung.CACHE: "the prefix cache holds the prompt",
    Rung.KV: "the neighbours are long instead of short",
    Rung.REPLICA: "another server answers",
}

_FINDINGS: Final = (
    "layer",
    "suspect",
    "verdict",
    "answers with other tokens",
    "with other logprobs",
    "largest difference",
    "chance",
    "what was compared",
)
_RUNGS: Final = ("rung", "what it changes", "rounds", "requests", "answers", "seconds", "left out or cut short")
_NONE: Final = "-"
_READING: Final = (
    '"0 of 24, below 11.8 % (95 %)" says that none of 24 answers differed, and that a true rate above that bound would '
    "rarely show so few; it is not never. p, under chance, is how often the answers would be parted as well as the "
    "condition parts them, if the condition did nothing: a small one blames it. A largest difference of 0 nats says "
    "that the logprobs too were equal to the last bit; one above 0 without other tokens says that the arithmetic "
    "changed and no choice was close enough to turn. All of it speaks of these prompts on this server only."
)


def facts(report: Report) -> str:
    """What was asked, of what."""
    deployment, course = report.deployment, report.course
    rows = [
        ("asked", f"{len(deployment.prompts)} prompts, {course.tokens} tokens each"),
        ("temperature", f"{report.investigation.temperature:g}{_seeded(report)}"),
        ("server", "a Reprise gateway" if deployment.gateway else "no Reprise gateway"),
        ("posture", deployment.posture or "not told"),
        ("context", "not told" if deployment.context is None else f"{deployment.context} tokens"),
        ("took", f"{report.seconds:.0f} s of a budget of {report.investigation.budget:.0f} s"),
    ]
    return table((), rows)


def layers(report: Report) -> str:
    """A sentence for each layer."""
    return element("ul", *(element("li", safe(said)) for said in summary(report.verdict)), class_="layers") + "\n"


def advice(report: Report) -> Iterator[str]:
    """What to do, and exactly what to send."""
    given = report.advice
    yield from (f"<p>{safe(sentence)}</p>\n" for sentence in given.sentences)
    if given.header:
        lines = "\n".join(f"{name}: {value}" for name, value in given.header.items())
        yield f"<p class=soft>As a header of each request</p>\n<pre>{safe(lines)}</pre>\n"
    if given.body:
        yield f"<p class=soft>Or in its body</p>\n<pre>{safe(json.dumps(dict(given.body)))}</pre>\n"
    if given.header:
        yield f"<p class=soft>To try it</p>\n<pre>{safe(curl(report))}</pre>\n"


def curl(report: Report) -> str:
    """One line for a shell that asks the first prompt with the advised header, quoted so that no text gets out."""
    investigation, deployment = report.investigation, report.deployment
    body: dict[str, Any] = {
        "model": deployment.model,
        "messages": [{"role": "user", "content": next(iter(deployment.prompts), "Hello")}],
        "max_tokens": report.course.tokens,
        "temperature": investigation.temperature,
    }
    if investigation.seed is not None:
        body["seed"] = investigation.seed
    headers = ["content-type: application/json", *(f"{name}: {value}" for name, value in report.advice.header.items())]
    words = ["curl", deployment.url + CHAT_PATH, *(word for header in headers for word in ("-H", header))]
    # The key itself is not for a page that is handed on.
    key = ' -H "authorization: Bearer $OPENAI_API_KEY"' if investigation.api_key is not None else ""
    return f"{shlex.join(words)}{key} -d {shlex.quote(json.dumps(body))}"


def findings(report: Report) -> str:
    """A row for each suspect."""
    return table(_FINDINGS, (_finding(finding) for finding in report.verdict.findings))


def rungs(report: Report) -> str:
    """What each rung did, or why it was left out."""
    return table(_RUNGS, (_rung(report, rung) for rung in Rung))


def plotted(plot: Plot) -> Iterator[str]:
    """A plot with its figures below it."""
    yield f"<figure>\n<h3>{safe(plot.title)}</h3>\n"
    if plot.svg is not None:
        yield f'<div class="wide" tabindex="0">{plot.svg}</div>\n'
    yield f"<figcaption>{safe(plot.said)}</figcaption>\n"
    if plot.rows:
        yield f"<details>\n<summary>the figures</summary>\n{table(plot.header, plot.rows)}</details>\n"
    yield "</figure>\n"


def beside(report: Report) -> str:
    """What must be said beside the findings; empty where nothing must."""
    said = doubts(report)
    return element("ul", *(element("li", element("bdi", safe(doubt))) for doubt in said)) + "\n" if said else ""


def reading() -> str:
    """What the numbers mean."""
    return f"<p>{safe(_READING)}</p>\n"


def _seeded(report: Report) -> str:
    if report.investigation.seed is not None:
        return f", seed {report.investigation.seed}"
    return ", with a pinned seed" if report.evidence.sampled else ""


def _finding(finding: Finding) -> tuple[str, ...]:
    return (
        finding.layer.value,
        TITLES[finding.suspect],
        finding.state.value,
        _tokens(finding),
        f"{finding.bits.k} of {finding.bits.n}" if finding.delta is not None else _NONE,
        f"{finding.delta:.2g} nats" if finding.delta is not None else _NONE,
        confidence(finding),
        finding.reason,
    )


def _tokens(finding: Finding) -> str:
    if finding.state is State.UNTESTED or not finding.tokens.n:
        return _NONE
    counted = rate_text(finding.tokens.k, finding.tokens.n)
    return f"of the forks {counted}" if finding.suspect is Suspect.TIES else counted


def _rung(report: Report, rung: Rung) -> tuple[str, ...]:
    record = report.evidence.records.get(rung)
    if record is None:
        why = report.evidence.missing.get(rung, "it was not reached")
        return rung.value, CHANGES[rung], _NONE, _NONE, _NONE, _NONE, why
    figures = (record.rounds, record.requests, len(record.samples))
    return rung.value, CHANGES[rung], *map(str, figures), f"{record.seconds:.0f}", record.reason or ""
