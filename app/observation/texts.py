r"""What is kept of an answer's text, where the operator asked for texts at all: redacted, and cut to a size.

Nothing is redacted by digests, verdicts or forks: they are made from the answer as it was.

What is kept is a JSON list with one member per choice: its text; or, of a choice with more to it than text, an object
with those of ``reasoning``, ``text``, ``refusal`` and ``tool_calls`` (pairs of name and arguments) that are not empty.

A model's answer is hostile input, and a pattern that runs holds the interpreter: so those below take no longer than in
proportion to the text. Where one begins, it either takes all that it has looked at or gives up within a few steps.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from app.determinism.output import Choice, Output, ToolCall

Redact = Callable[[str], str]
"""Takes a text, of a long one the beginning, to what may be kept of it."""

MASK: Final = "[redacted]"

_BEYOND: Final = 1024
_BROKEN: Final = 256
"""Characters before a cut in which a secret may have been broken, so that it looks like none any more."""


class _Kind(NamedTuple):
    """A kind of secret. A text with one holds one of ``hints`` in lower case, which are found much faster than it is.

    ``pattern`` has a group called "name", which stays: what stands before the secret and says that it is one.
    """

    hints: tuple[str, ...]
    pattern: re.Pattern[str]


_KINDS: Final = (
    # By their own shape.
    _Kind(
        ("sk-", "sk_", "aiza", "glpat-", "npm_", "xapp-", "gh", "hf_", "akia", "asia", "xox", "eyj"),
        re.compile(
            r"""(?P<name>)(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf]))(?:
                sk[-_][A-Za-z0-9_-]{16,}         # OpenAI, Anthropic, Stripe and those who copied them
              | AIza[A-Za-z0-9_-]{30,}           # Google
              | glpat-[A-Za-z0-9_-]{16,}
              | npm_[A-Za-z0-9]{30,}
              | xapp-[A-Za-z0-9-]{10,}
              | (?:gh[pousr]|github_pat)_[A-Za-z0-9_]{20,}
              | hf_[A-Za-z0-9]{20,}
              | (?:AKIA|ASIA)[A-Z0-9]{16}        # AWS
              | xox[abprs]-[A-Za-z0-9-]{10,}     # Slack
              | eyJ[A-Za-z0-9_-]{16,}(?:\.[A-Za-z0-9_-]*){0,4}  # a JSON web token, or the beginning of one
            )""",
            re.VERBOSE,
        ),
    ),
    _Kind(
        ("-----begin ",),
        re.compile(
            r"""(?P<name>)-----BEGIN\ [A-Z ]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----
            .*?(?:-----END\ [A-Z ]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----|\Z)""",
            re.VERBOSE | re.DOTALL,
        ),
    ),
    # An assignment in a shell, a program, JSON, or JSON within JSON; a value ends where its quotes do, if it has any.
    _Kind(
        ("pass", "pwd", "secret", "token", "key"),
        re.compile(
            r"""(?P<name>
                (?:pass(?:word|wd|phrase)|pwd|secret|token|(?:api|access|account|auth|private|secret)[-_ ]?key)
                \\{0,3}["']?\ {0,8}(?:=>|[=:])\ {0,8}\\{0,3}(?P<quote>["'])?
            )
            (?(quote)
                (?=(?:(?!(?P=quote))[^\n]){8}) (?:(?!(?P=quote))[^\n\\]|\\++(?!["']))+
              | (?=[^\s"',;]{8}) (?:[^\s"',;\\]|\\++(?!["']))+
            )""",
            re.VERBOSE | re.IGNORECASE,
        ),
    ),
    _Kind(
        ("bearer ", "basic "),
        re.compile(
            r"(?P<name>(?<![a-z])(?:bearer|authorization:\ ?basic)\ {1,4})[a-z0-9._~+/-]{16,}=*",
            re.VERBOSE | re.IGNORECASE,
        ),
    ),
    # The password of a URL.
    _Kind(("://",), re.compile(r"""(?P<name>://[^\s/:@"']{0,64}:)[^\s/@"']{1,256}(?=@)""")),
)

_log = logging.getLogger(__name__)


def mask_secrets(text: str) -> str:
    """The text with what looks like a secret replaced by ``[redacted]``: the hook that is used where none is named."""
    lower = text.lower()
    for kind in _KINDS:
        if any(hint in lower for hint in kind.hints):
            text = kind.pattern.sub(rf"\g<name>{MASK}", text)
    return text


class Texts:
    """Gives what is kept of an output, as the module says: texts that are together about ``limit`` bytes long.

    A text that is cut ends in an ellipsis; what short ones leave of the limit, long ones have. Where ``redact`` fails,
    nothing is kept.
    """

    def __init__(self, limit: int, redact: Redact) -> None:
        self._limit = limit
        self._redact = redact

    def __call__(self, output: Output) -> str | None:
        """The texts to keep of an output; None for nothing."""
        try:
            share = _share((len(text.encode()) for choice in output.choices for text in _texts(choice)), self._limit)
            return json.dumps([self._keep(choice, share) for choice in output.choices], ensure_ascii=False)
        except Exception as error:  # noqa: BLE001 - the operator's hook may raise anything
            # Its kind alone: the message may hold the text.
            _log.error("the redaction hook failed (%s); %s is not kept", type(error).__name__, output.digest)
            return None

    def _keep(self, choice: Choice, most: int) -> str | dict[str, Any]:
        text = self._cut(choice.text, most)
        beside = {
            "reasoning": self._cut(choice.reasoning, most),
            "text": text,
            "refusal": self._cut(choice.refusal, most),
            "tool_calls": [
                [self._cut(part, most) for part in (call.name, call.arguments)] for call in choice.tool_calls
            ],
        }
        kept = {name: part for name, part in beside.items() if part}
        return kept if kept.keys() - {"text"} else text

    def _cut(self, text: str, most: int) -> str:
        """The redacted text, of at most so many bytes. No more of it than that may need is redacted."""
        if not text:
            return text
        looked_at = 2 * most + _BEYOND
        whole = len(text) <= looked_at
        kept = self._redact(text) if whole else self._redact(text[:looked_at])[:-_BROKEN]
        data = kept.encode()
        return kept if whole and len(data) <= most else data[:most].decode("utf-8", "ignore") + "…"


def read_kept(kept: str) -> tuple[Choice, ...]:
    """The choices whose texts were kept. A text that alone was kept is all there is of its choice.

    Raises ValueError, TypeError and RecursionError for what is none of ours.
    """
    # The standard parser: it takes a lone half of a surrogate pair, which what a hook gives may hold.
    choices = json.loads(kept)
    if not isinstance(choices, list):
        raise TypeError("not a list of choices")
    return tuple(_read(position, choice) for position, choice in enumerate(choices))


def _read(position: int, kept: object) -> Choice:
    if isinstance(kept, str):
        return Choice(position, _whole(kept), finish_reason="kept")
    if not isinstance(kept, Mapping):
        raise TypeError("a choice is neither a text nor parts")
    text, reasoning, refusal = (_whole(kept.get(name, "")) for name in ("text", "reasoning", "refusal"))
    calls = tuple(ToolCall(_whole(name), _whole(arguments)) for name, arguments in kept.get("tool_calls", ()))
    return Choice(position, text, reasoning, refusal, calls, "kept")


def _whole(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError("a part is no text")
    return text.encode(errors="replace").decode()


def _texts(choice: Choice) -> Iterable[str]:
    yield from (choice.reasoning, choice.text, choice.refusal)
    for call in choice.tool_calls:
        yield from (call.name, call.arguments)


def _share(lengths: Iterable[int], limit: int) -> int:
    """The most that each of these may have of a limit; one at least."""
    ordered = sorted(lengths)
    share = limit
    for place, length in enumerate(ordered):
        share = limit // (len(ordered) - place)
        if length >= share:
            break
        limit -= length
    return max(share, 1)
