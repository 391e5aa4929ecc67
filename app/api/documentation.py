"""The two generating endpoints as OpenAPI, for ``/docs``; they are raw ASGI, so FastAPI cannot describe them."""

from typing import Any, Final

from fastapi import FastAPI

from app.determinism.mode import REQUESTABLE_MODES, Mitigation
from app.determinism.plan import MOST_WINDOW

_DETERMINISM: Final[dict[str, Any]] = {
    "description": "How deterministic this request must be: a mode, or a mode and single mitigations.",
    "oneOf": [
        {"type": "string", "enum": list(REQUESTABLE_MODES)},
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "mode": {"type": "string", "enum": list(REQUESTABLE_MODES)},
                "mitigations": {"type": "array", "items": {"type": "string", "enum": list(Mitigation)}},
                "on_unavailable": {"type": "string", "enum": ["reject", "report"], "default": "reject"},
                "window": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MOST_WINDOW,
                    "description": "Tokens of a window of a verified answer; a part of what was asked.",
                },
            },
        },
    ],
}

_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {name: {"type": ["string", "null"]} for name in ("message", "type", "param", "code")},
        }
    },
}

_REQUEST_HEADERS: Final[dict[str, dict[str, Any]]] = {
    "x-determinism-mode": {"type": "string", "enum": list(REQUESTABLE_MODES)},
    "x-determinism-mitigations": {"type": "string", "examples": ["batch_isolation,pinned_seed"]},
    "x-determinism-on-unavailable": {"type": "string", "enum": ["reject", "report"], "default": "reject"},
    "x-determinism-window": {"type": "integer", "minimum": 1, "maximum": MOST_WINDOW},
}

REQUEST_PARAMETERS: Final[list[dict[str, Any]]] = [
    {"name": name, "in": "header", "required": False, "schema": schema} for name, schema in _REQUEST_HEADERS.items()
]
"""The headers that choose a mode, as OpenAPI parameters."""

_ANSWER_HEADERS: Final = {
    "x-determinism-request": "The gateway's own id, under which /v1/determinism/receipts/{request_id} has the receipt.",
    "x-determinism-mode": "The mode that ruled.",
    "x-determinism-applied": "The mitigations that were applied, comma-separated.",
    "x-determinism-unavailable": "With on_unavailable=report: what could not be honoured, and why.",
    "x-determinism-replica": "The replica that answered.",
    "x-determinism-posture": "The digest of its observed posture.",
    "x-determinism-gate": "Whose count the co-resident peak is: guard or gateway.",
    "x-determinism-temperature-requested": "The temperature that the caller asked for.",
    "x-determinism-temperature-effective": "The temperature that took effect in the engine.",
    "x-determinism-coresident-peak": "Unary: the most requests that shared the engine with this one, itself included.",
    "x-determinism-admission-wait": "Unary: seconds that the request waited for its lease, guard included.",
    "x-determinism-window": "Verified: the window in tokens.",
    "x-determinism-grid": "Verified: how windows lie and what a pass reads, chain or prompt.",
    "x-determinism-passes": "Verified, unary: passes of the verifier.",
    "x-determinism-rollbacks": "Verified, unary: passes that refuted a draft.",
    "x-determinism-drafted": "Verified, unary: tokens that came from a drafter.",
    "x-determinism-accepted": "Verified, unary: those of them that the verifier chose too.",
    "x-determinism-verifier-seconds": "Verified, unary: what the passes took on their engine.",
    "x-determinism-output": "Unary: the digest of the output.",
    "x-determinism-verdict": "Unary: match, diverged, pending or incomparable, against the cohort's reference.",
}


_RETRY_AFTER: Final = {"description": "Seconds, where a time can be named.", "schema": {"type": "integer"}}


def describe_inference(app: FastAPI) -> None:
    """Add the generating endpoints to the application's OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        # FastAPI describes its own shape of validation errors; ours have the one shape that all errors have.
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for schema in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(schema, None)
        document["paths"] |= {
            "/v1/chat/completions": _operation("Chat completion, as vLLM serves it.", "messages"),
            "/v1/completions": _operation("Completion, as vLLM serves it.", "prompt"),
        }
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document


def _operation(summary: str, content: str) -> dict[str, Any]:
    properties = {"model": {"type": "string"}, content: {}, "stream": {"type": "boolean"}, "determinism": _DETERMINISM}
    properties["priority"] = {"type": "integer", "default": 0, "description": "Who runs alone first: the lower number."}
    body = {"type": "object", "required": [content], "additionalProperties": True, "properties": properties}
    headers = {name: {"description": text, "schema": {"type": "string"}} for name, text in _ANSWER_HEADERS.items()}
    failures = {
        "400": "The body, the mode or a mitigation is wrong; the message names the field.",
        "404": "No replica serves the model (model_not_found).",
        "413": "The body is over the limit.",
        "429": "Too many requests of its class wait for the replica (queue_full); Retry-After says when to come back.",
        "502": "The replica could not be reached, or broke off before its answer began.",
        "503": "No replica is ready, the wait for a turn was too long (queue_timeout, with Retry-After), or no replica "
        "can honour a mitigation (determinism_unavailable).",
        "504": "The replica sent nothing in time.",
    }
    errors: dict[str, dict[str, Any]] = {
        status: {"description": text, "content": {"application/json": {"schema": _ERROR}}}
        for status, text in failures.items()
    }
    for status in ("429", "502", "503"):
        errors[status]["headers"] = {"retry-after": _RETRY_AFTER}
    return {
        "post": {
            "summary": summary,
            "tags": ["inference"],
            "parameters": REQUEST_PARAMETERS,
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {"200": {"description": "The engine's own answer.", "headers": headers}, **errors},
        }
    }
