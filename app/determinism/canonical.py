"""The canonical form of a request: what makes two requests repeats of each other.

It holds the model as served, the path and every member that can change the answer, in its own inner key order, because
chat templates render tool schemas and messages in the order in which they came. Sorting only happens at the top level.
Unknown members stay in, so that a doubt makes two cohorts and never merges two.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any, Final

import orjson

from app.determinism.request import InferenceRequest

VOLATILE: Final = frozenset(
    {
        "determinism",
        "model",
        "stream",
        "stream_options",
        "stream_interval",
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "session_id",
        "priority",
        "cache_salt",
        "kv_transfer_params",
        "ec_transfer_params",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "return_prompt_text",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "timeout",
    }
)
"""Members that do not change which tokens the engine chooses (vLLM 0.32), and those that only the gateway reads."""

_FLOATS: Final = frozenset(
    {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty"}
)
"""Members for which 0 and 0.0 mean the same."""


def canonical(request: InferenceRequest, model: str | None) -> bytes:
    """The canonical bytes of a request for ``model`` as served."""
    members = request.members
    kept = {
        name: _number(members[name]) if name in _FLOATS else members[name]
        for name in sorted(members)
        if name not in VOLATILE and members[name] is not None
    }
    return orjson.dumps([request.path, model, kept])


class CohortKeys:
    """Makes cohort keys: HMAC-SHA256, so that a stored key cannot be guessed back to a short prompt.

    The keyed state is made once and copied for each request. ``hmac.digest`` would do it in one call, but lets go of
    the interpreter in it, and the hot path then waits for whichever thread took it.
    """

    def __init__(self, installation_key: bytes) -> None:
        self._keyed = hmac.new(installation_key, digestmod="sha256")

    def of(self, canonical_request: bytes) -> str:
        """The cohort key of a canonical request, 64 hex digits."""
        keyed = self._keyed.copy()
        keyed.update(canonical_request)
        return keyed.hexdigest()


def derived_seed(canonical_request: bytes) -> int:
    """The seed of a request that brought none: 53 bits of SHA-256, the same on every installation.

    53 bits, so that no JSON reader that holds numbers as doubles can round it.
    """
    return int.from_bytes(hashlib.sha256(canonical_request).digest()[:8], "big") >> 11


def has_remote_media(members: Mapping[str, Any]) -> bool:
    """Whether the messages point to media elsewhere, whose content may change between two requests."""
    return any(
        _remote(part)
        for message in _list(members.get("messages"))
        if isinstance(message, dict)
        for part in _list(message.get("content"))
    )


def _remote(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    urls = [
        value.get("url") if isinstance(value, dict) else value for name, value in part.items() if name.endswith("_url")
    ]
    return any(isinstance(url, str) and not url.startswith("data:") for url in urls)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _number(value: object) -> object:
    return float(value) + 0.0 if isinstance(value, int | float) and not isinstance(value, bool) else value
