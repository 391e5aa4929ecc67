"""Answers, evidence and reports, made rather than measured on any server."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from app.determinism.mode import Mode
from app.determinism.output import Choice
from app.diagnose.advice import advise
from app.diagnose.cure import Cure
from app.diagnose.discovery import Deployment
from app.diagnose.investigation import Investigation
from app.diagnose.ladder import Record
from app.diagnose.planning import Course
from app.diagnose.report import Report
from app.diagnose.rungs import Extent, Rung
from app.diagnose.sample import Sample, Setting
from app.diagnose.verdict import Evidence, judge
from app.probe.tally import Row, Spread, Status, WaitSource

URL: Final = "http://engine.test:8000"
OTHER: Final = "http://other.test:8000"
PROMPTS: Final = (
    "Write a haiku about the sea.",
    "Invent a name for a small harbour town and describe its market.",
    "Give me a riddle.",
    "What would you put into an empty room?",
)
WORDS: Final = (
    *(
        "the",
        "sea",
        "is",
        "old",
        "and",
        "green",
        "a",
        "bell",
        "rings",
        "over",
        "boats",
        "that",
        "sleep",
        "near",
        "salt",
    ),
    *(
        "doors",
        "of",
        "stone",
        "where",
        "lamps",
        "burn",
        "low",
        ".",
        ",",
        "with",
        "copper",
        "nets",
        "in",
        "grey",
        "rain",
    ),
)
TOKENS: Final = 32
SIZES: Final = (2, 4, 8)

DEPLOYMENT: Final = Deployment(
    url=URL,
    model="small-model",
    prompts=PROMPTS,
    context=2048,
    token_seconds=0.04,
    gateway=True,
    alone_proven=True,
    logprobs=True,
    exact=True,
    unsaid=(),
    replica="r-1",
    posture="p-1234",
)


def choice(
    ids: Sequence[int],
    margins: Sequence[float] | None = None,
    logprobs: Sequence[float] | None = None,
    words: Sequence[str] | None = None,
) -> Choice:
    """A finished answer of these tokens, each of one letter where no words are given; no logprobs unless given."""
    texts = tuple(chr(ord("a") + token % 26) for token in ids) if words is None else tuple(words)
    return Choice(
        0,
        "".join(texts),
        finish_reason="length",
        token_ids=array("l", ids),
        tokens=texts,
        margins=None if margins is None else array("d", margins),
        logprobs=None if logprobs is None else array("d", logprobs),
    )


def sample(
    ids: Sequence[int],
    prompt: int = 0,
    setting: Setting = Setting(),  # noqa: B008 - a frozen value
    *,
    margin: float = 3.0,
    logprob: float = -0.5,
    cached: int | None = None,
) -> Sample:
    """An answer of which every token has this margin and this logprob, in nats."""
    made = choice(ids, [margin] * len(ids), [logprob] * len(ids))
    return Sample(prompt, setting, made, peak=setting.size, cached=cached)


def cure(
    mode: Mode,
    diverged: int,
    compared: int,
    speed: float,
    *,
    status: Status = Status.MEASURED,
    reason: str | None = None,
) -> Cure:
    """A measured mode: so many repeats diverged, at a speed in tokens per second with its load's share of a half."""
    known = compared > 0
    row = Row(
        mode=mode,
        status=status,
        reason=reason,
        asked=max(compared, 16),
        compared=compared,
        diverged=diverged,
        failed=0,
        distinct=(1 + bool(diverged),) * known,
        fork=7 if diverged else None,
        fork_median=7.0 if diverged else None,
        answers=compared + known,
        peak=None,
        peaks_known=0,
        confirmed=known,
        tokens_per_second=speed / 2 if known else None,
        background_per_second=speed / 2 if known else None,
        latency=Spread(1.0, 2.0) if known else None,
        wait=Spread(0.25, 0.5) if known else None,
        wait_source=WaitSource.ADMISSION if known else None,
    )
    return Cure(mode, row, cut=False)


CURES: Final = (
    cure(Mode.STANDARD, 21, 64, 212.0),
    cure(Mode.INVARIANT, 0, 0, 0.0, status=Status.UNAVAILABLE, reason="no replica has batch_invariance"),
    cure(Mode.VERIFIED, 0, 64, 118.0),
    cure(Mode.ISOLATED, 0, 48, 41.0),
)


def report(
    samples: Mapping[Rung, Sequence[Sample]],
    *,
    deployment: Deployment = DEPLOYMENT,
    investigation: Investigation | None = None,
    cures: tuple[Cure, ...] = (),
    missing: Mapping[Rung, str] | None = None,
    tokens: int = TOKENS,
) -> Report:
    """The report on these answers, judged as a run's are."""
    asked = Investigation(URL) if investigation is None else investigation
    left_out = {} if missing is None else missing
    records = {
        rung: Record(samples=list(several), rounds=3, requests=len(several), seconds=0.5 * len(several))
        for rung, several in samples.items()
    }
    replicas = len(asked.replicas)
    evidence = Evidence(
        records=records,
        postures={number: frozenset({"p-1234"}) for number in range(replicas + 1)},
        exact=deployment.exact,
        logprobs=deployment.logprobs,
        sampled=asked.temperature > 0,
        replicas=replicas,
        missing=left_out,
    )
    verdict = judge(evidence)
    return Report(
        investigation=asked,
        deployment=deployment,
        course=Course(Extent(SIZES, tuple(records), replicas), tokens, left_out),
        evidence=evidence,
        verdict=verdict,
        cures=cures,
        advice=advise(verdict, cures, gateway=deployment.gateway),
        seconds=241.0,
    )


def realistic(seed: int = 0) -> Report:
    """All rungs of an engine in 16 bits whose batch shape and prefix cache move logits, and two replicas that agree."""
    pen = Pen(seed)
    samples = {
        Rung.ALONE: [pen.answer(prompt, Setting()) for _ in range(3) for prompt in range(4)],
        Rung.BATCH: [*pen.batches(rounds=2)],
        Rung.CACHE: [
            pen.answer(prompt, Setting(warm=warm)) for _ in range(3) for prompt in range(4, 8) for warm in (False, True)
        ],
        Rung.KV: [
            pen.answer(prompt, Setting(size=4, content=number, kv=kv))
            for number in range(4)
            for prompt in (5, 6)
            for kv in (16, 640)
        ],
        Rung.REPLICA: [pen.answer(prompt, Setting(replica=1)) for _ in range(3) for prompt in range(4)],
    }
    investigation = Investigation(URL, replicas=(OTHER,))
    missing = {Rung.SAMPLER: "nothing is sampled without a seed"}
    whole = report(samples, investigation=investigation, cures=CURES, missing=missing)
    whole.evidence.records[Rung.KV].troubles.append("HTTP 429: slow down")
    return replace(whole, left_out={"r-2": 3})


@dataclass(frozen=True, slots=True)
class Pen:
    """Writes answers as a model would: the tokens so far decide the two likeliest next ones and their margin."""

    seed: int

    def batches(self, rounds: int) -> Iterator[Sample]:
        """Each prompt alone, and in batches of all sizes with three contents each."""
        for _ in range(rounds):
            for prompt in range(4):
                yield self.answer(prompt, Setting())
                for size in SIZES:
                    for content in range(3):
                        yield self.answer(prompt, Setting(size=size, content=content))

    def answer(self, prompt: int, setting: Setting) -> Sample:
        """What moves logits is the batch's size and the cache, by up to about a rounding step."""
        moved_by = (setting.size if not setting.kv else 1, setting.warm)
        ids: list[int] = []
        margins, logprobs = [], []
        for _ in range(TOKENS):
            model = Random(f"{self.seed} {prompt} {ids}")  # noqa: S311 - a made model
            first, second = model.sample(range(len(WORDS)), 2)
            margin = model.choice((0.0, 0.0625, 0.125)) if model.random() < 0.06 else 0.3 + model.expovariate(0.6)
            noise = Random(f"{self.seed} {ids} {moved_by}")  # noqa: S311 - as above
            still = moved_by == (1, False)
            margin += 0.0 if still else noise.gauss(0, 0.06)
            ids.append(first if margin >= 0 else second)
            margins.append(abs(margin))
            logprobs.append(-model.expovariate(2) - (0.0 if still else abs(noise.gauss(0, 0.02 * setting.size**0.5))))
        words = [f" {WORDS[token]}" for token in ids]
        cached = 128 if setting.warm else 0
        return Sample(prompt, setting, choice(ids, margins, logprobs, words), peak=setting.size, cached=cached)
