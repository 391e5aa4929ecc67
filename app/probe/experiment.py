"""What one run of the probe does, as a value, and the requests that it sends."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from app.determinism.mode import Mode
from app.determinism.output import CHAT_PATH, TEXT_PATH
from app.probe.prompts import BUILT_IN

_HIGHEST_PORT: Final = 65_535


class NotMeasurable(Exception):
    """The probe cannot run; the message is one line for the terminal."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request whose repeats are compared with each other: a path and a body that lacks the model alone."""

    path: str
    body: Mapping[str, Any]
    choices: int


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run: what is asked, how often, in which modes, and what else the server has to do meanwhile.

    ``repeats`` counts per question and leaves the reference out. ``timeout`` is in seconds and covers one whole answer.
    """

    url: str
    modes: tuple[Mode, ...]
    prompts: tuple[str, ...] = BUILT_IN
    model: str | None = None
    repeats: int = 16
    tokens: int = 48
    temperature: float = 0.0
    seed: int | None = None
    together: bool = False
    concurrency: int = 4
    load: int = 8
    api_key: str | None = None
    timeout: float = 300.0

    @classmethod
    def of(cls, arguments: argparse.Namespace, environment: Mapping[str, str]) -> "Experiment":
        """The experiment that the command line describes. Raises NotMeasurable naming the option that is wrong."""
        return cls(
            url=base_url(arguments.url),
            modes=arguments.modes,
            prompts=BUILT_IN if arguments.prompts is None else read_prompts(Path(arguments.prompts)),
            model=arguments.model,
            repeats=arguments.repeats,
            tokens=arguments.tokens,
            temperature=arguments.temperature,
            seed=arguments.seed,
            together=arguments.together,
            concurrency=arguments.concurrency,
            load=arguments.load,
            api_key=api_key(arguments, environment),
            timeout=arguments.timeout,
        )

    @property
    def questions(self) -> tuple[Question, ...]:
        """One question per prompt, or one for the whole list of them."""
        if self.together:
            return (Question(TEXT_PATH, {"prompt": list(self.prompts), **self._sampling()}, len(self.prompts)),)
        return tuple(
            Question(CHAT_PATH, {"messages": [{"role": "user", "content": prompt}], **self._sampling()}, 1)
            for prompt in self.prompts
        )

    @property
    def comparisons(self) -> int:
        """How many answers a mode compares with their reference when nothing fails."""
        return self.repeats * (1 if self.together else len(self.prompts))

    @property
    def requests(self) -> int:
        """How many requests a mode sends: the comparisons and their references."""
        return (self.repeats + 1) * (1 if self.together else len(self.prompts))

    def rounds(self) -> Iterator[int]:
        """The questions to repeat, by position, each once per round: neighbours in flight ask different things."""
        for _ in range(self.repeats):
            yield from range(1 if self.together else len(self.prompts))

    def _sampling(self) -> dict[str, Any]:
        seed = {} if self.seed is None else {"seed": self.seed}
        return {
            "max_tokens": self.tokens,
            "temperature": self.temperature,
            "ignore_eos": True,
            "return_token_ids": True,
            **seed,
        }


def api_key(arguments: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    """The server's API key, by option or environment. Raises NotMeasurable where it cannot be sent."""
    key: str | None = arguments.api_key or environment.get("OPENAI_API_KEY") or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise NotMeasurable("--api-key: the key holds characters that no HTTP header can carry")
    return key


def base_url(text: str, option: str = "--url") -> str:
    """A server's address without its ``/v1``. Raises NotMeasurable naming the option."""
    try:
        url = httpx.URL(text)
        plain = not (url.query or url.fragment or url.userinfo) and (url.port or 1) <= _HIGHEST_PORT
        valid = plain and url.scheme in {"http", "https"} and bool(url.host)
    except (httpx.InvalidURL, UnicodeError):
        valid = False
    if not valid:
        raise NotMeasurable(f"{option}: {text!r} is not an http or https address")
    return text.rstrip("/").removesuffix("/v1")


def read_prompts(path: Path) -> tuple[str, ...]:
    """The lines of a file of prompts. Raises NotMeasurable."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise NotMeasurable(f"--prompts: cannot read {path}: {reason}") from exc
    prompts = tuple(line.strip() for line in lines if line.strip())
    if not prompts:
        raise NotMeasurable(f"--prompts: {path} holds no prompt")
    return prompts
