"""What one run of ``reprise diagnose`` is asked to do, as a value."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.probe.experiment import NotMeasurable, api_key, base_url, read_prompts
from app.probe.prompts import BUILT_IN

BATCH_SIZES: Final = (2, 4, 8)
PROMPTS_USED: Final = 4
"""The ladder asks so many prompts, and each of them often."""

CANDIDATES: Final = (
    *BUILT_IN,
    "Pick any number between one and a hundred and say why.",
    "Invent a name for a small harbour town and describe its market.",
    "Name three animals that would make good teachers.",
    "Tell me a short tale that begins with a knock at the door.",
    "Suggest a title for a book about patience.",
    "Describe a colour to someone who has never seen it.",
    "What would you put into an empty room?",
    "Give me a riddle about the sea.",
)
"""Open tasks, without one right answer: a model comes to close choices in them, and those show most. All are looked at
first, and the `PROMPTS_USED` with the closest choices are asked."""


@dataclass(frozen=True, slots=True)
class Investigation:
    """One run.

    ``budget`` and ``timeout`` are in seconds. ``tokens`` are those of an answer, ``repeats`` the rounds of a rung
    at most (one that needs more takes what it needs); None = as many as the budget allows.

    ``replicas`` are further servers that should answer as ``url`` does. ``seed`` is sent where something is sampled.
    """

    url: str
    prompts: tuple[str, ...] = CANDIDATES
    model: str | None = None
    budget: float = 290.0
    tokens: int | None = None
    repeats: int | None = None
    sizes: tuple[int, ...] = BATCH_SIZES
    temperature: float = 0.0
    seed: int | None = None
    replicas: tuple[str, ...] = ()
    api_key: str | None = None
    timeout: float = 120.0
    cures: bool = True

    @classmethod
    def of(cls, arguments: argparse.Namespace, environment: Mapping[str, str]) -> "Investigation":
        """The run that the command line describes. Raises NotMeasurable naming the option that is wrong."""
        prompts = CANDIDATES if arguments.prompts is None else read_prompts(Path(arguments.prompts))
        url = base_url(arguments.url)
        replicas = tuple(base_url(replica, "--replica") for replica in arguments.replica)
        if url in replicas or len(set(replicas)) < len(replicas):
            raise NotMeasurable("--replica: names the same server twice")
        return cls(
            url=url,
            prompts=prompts[: len(CANDIDATES)],
            model=arguments.model,
            budget=arguments.budget,
            tokens=arguments.tokens,
            repeats=arguments.repeats,
            sizes=arguments.batch_sizes,
            temperature=arguments.temperature,
            seed=arguments.seed,
            replicas=replicas,
            api_key=api_key(arguments, environment),
            timeout=arguments.timeout,
            cures=arguments.cures,
        )
