"""What is kept of an answer's text, where the operator asked for texts at all: cut to a size, and redacted first.

Nothing is redacted by digests, verdicts or forks: they are made from the answer as it was.
"""

import json
import logging
import re
from collections.abc import Callable
from typing import Final

from app.determinism.output import Output

Redact = Callable[[str], str]
"""Takes a text to what may be kept of it."""

MASK: Final = "[redacted]"

_SECRETS: Final = re.compile(
    r"""(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf]))(?:
        sk[-_][A-Za-z0-9_-]{16,}         # OpenAI, Anthropic, Stripe and those who copied them
      | AIza[A-Za-z0-9_-]{30,}           # Google
      | glpat-[A-Za-z0-9_-]{16,}
      | npm_[A-Za-z0-9]{30,}
      | xapp-[A-Za-z0-9-]{10,}
      | Bearer\ [A-Za-z0-9._~+/-]{16,}=*
      | (?:aws_secret_access_key|api_key|password)["']?\ *[=:]\ *["']?[^\s"',;]{8,}
      | (?:gh[pousr]|github_pat)_[A-Za-z0-9_]{20,}
      | hf_[A-Za-z0-9]{20,}
      | (?:AKIA|ASIA)[A-Z0-9]{16}        # AWS
      | xox[abprs]-[A-Za-z0-9-]{10,}     # Slack
      | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}  # a JSON web token
    )
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)""",
    re.VERBOSE | re.DOTALL,
)

_log = logging.getLogger(__name__)


def mask_secrets(text: str) -> str:
    """The text with what looks like a key replaced by ``[redacted]``: the hook that is used where none is named."""
    return _SECRETS.sub(MASK, text)


class Texts:
    """Gives what is kept of an output: a JSON list with one text per choice, together about ``limit`` bytes long.

    A text that is cut ends in an ellipsis. Where ``redact`` fails, nothing is kept.
    """

    def __init__(self, limit: int, redact: Redact) -> None:
        self._limit = limit
        self._redact = redact

    def __call__(self, output: Output) -> str | None:
        """The text to keep of an output; None for nothing."""
        each = max(self._limit // max(len(output.choices), 1), 1)
        try:
            return json.dumps([_cut(self._redact(choice.flow), each) for choice in output.choices], ensure_ascii=False)
        except Exception as error:  # noqa: BLE001 - the operator's hook may raise anything
            # Its kind alone: the message may hold the text.
            _log.error("the redaction hook failed (%s); %s is not kept", type(error).__name__, output.digest)
            return None


def _cut(text: str, most: int) -> str:
    data = text.encode()
    return text if len(data) <= most else data[:most].decode("utf-8", "ignore") + "…"
