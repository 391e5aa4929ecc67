"""The one error tree of the gateway.

Each class stands for one answer in OpenAI's error shape: an HTTP status, a ``type`` and a ``code``.
Foreign exceptions are translated at the border (``raise UpstreamUnavailable(...) from exc``).

    RepriseError                     500  server_error           internal_error
    ├── InvalidRequest               400  invalid_request_error  invalid_request
    │   ├── InvalidReceipt           400                         invalid_receipt
    │   ├── Unauthorized             401                         invalid_api_key
    │   ├── Forbidden                403                         forbidden
    │   ├── NotFound                 404                         not_found
    │   │   └── ModelNotFound        404                         model_not_found
    │   ├── MethodNotAllowed         405                         method_not_allowed
    │   ├── RequestTimeout           408                         request_timeout
    │   ├── RequestTooLarge          413                         request_too_large
    │   └── UnsupportedMediaType     415                         unsupported_media_type
    ├── UpstreamError                502  server_error           upstream_error
    │   ├── UpstreamUnavailable      502                         upstream_unavailable
    │   ├── UpstreamReset            502                         upstream_reset
    │   ├── UnusableRow              502                         upstream_error
    │   └── UpstreamTimeout          504                         upstream_timeout
    ├── QueueFull                    429  rate_limit_error       queue_full
    └── NotReady                     503  server_error           not_ready
        ├── QueueTimeout             503                         queue_timeout
        └── DeterminismUnavailable   503                         determinism_unavailable
"""

import math
from typing import ClassVar, Final

_LONGEST_RETRY: Final = 60
"""Seconds; OpenAI's clients take no longer Retry-After for serious and go by a short delay of their own."""


class RepriseError(Exception):
    """An answer in OpenAI's error shape.

    ``message`` is for people and names the field; ``param`` is the field as OpenAI names it, or None. ``retry_after``
    says in how many seconds it is worth another try. Where there is no such time and ``retryable`` is False, OpenAI's
    clients, which repeat a 5xx by themselves, are told that it would fail again.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = True

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.error_code = code or self.code
        self.retry_after = retry_after

    @property
    def worth_retrying(self) -> bool:
        """Whether the same request could succeed later."""
        return self.retryable or self.retry_after is not None

    @property
    def retry_after_header(self) -> bytes | None:
        """Whole seconds for ``Retry-After``, 1 to 60; None where no time can be named."""
        if self.retry_after is None:
            return None
        return b"%d" % min(max(math.ceil(self.retry_after), 1), _LONGEST_RETRY)

    def body(self) -> dict[str, dict[str, str | None]]:
        """The OpenAI error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.error_code,
            }
        }


class InvalidRequest(RepriseError):
    """The caller sent something that cannot be honoured as it stands."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class InvalidReceipt(InvalidRequest):
    """The text is no valid signed receipt. ``param`` is the part that is wrong: file, receipt or signature."""

    code = "invalid_receipt"


class Unauthorized(InvalidRequest):
    """No key, or a wrong one. ``realm`` is what a browser shows when it asks for it."""

    status = 401
    code = "invalid_api_key"

    def __init__(self, message: str, *, realm: str) -> None:
        super().__init__(message)
        self.realm = realm


class Forbidden(InvalidRequest):
    """Nobody may, whoever asks."""

    status = 403
    code = "forbidden"


class NotFound(InvalidRequest):
    """No such path or object."""

    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    """No replica serves the model."""

    code = "model_not_found"


class MethodNotAllowed(InvalidRequest):
    """The path exists; the method does not."""

    status = 405
    code = "method_not_allowed"


class RequestTimeout(InvalidRequest):
    """The body did not arrive in time."""

    status = 408
    code = "request_timeout"


class RequestTooLarge(InvalidRequest):
    """The body is over the limit."""

    status = 413
    code = "request_too_large"


class UnsupportedMediaType(InvalidRequest):
    """The body is compressed or not JSON."""

    status = 415
    code = "unsupported_media_type"


class UpstreamError(RepriseError):
    """The upstream did not give a usable answer."""

    status = 502
    code = "upstream_error"


class UpstreamUnavailable(UpstreamError):
    """The upstream refused the connection; nothing was sent."""

    code = "upstream_unavailable"


class UpstreamReset(UpstreamError):
    """The upstream closed the connection before its answer was complete."""

    code = "upstream_reset"


class UnusableRow(UpstreamError):
    """The verifier's word on a token cannot be used: it is missing, it is not a number, or it decides nothing."""


class UpstreamTimeout(UpstreamError):
    """The upstream stayed silent longer than the deadline."""

    status = 504
    code = "upstream_timeout"


class QueueFull(RepriseError):
    """Too many requests of its class wait already; it was never queued."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"


class NotReady(RepriseError):
    """No replica can take the request now."""

    status = 503
    code = "not_ready"


class QueueTimeout(NotReady):
    """The request waited for its turn as long as it may; it was never sent."""

    code = "queue_timeout"


class DeterminismUnavailable(NotReady):
    """A mitigation that the request needs cannot be honoured; the message names it and says why."""

    code = "determinism_unavailable"
    retryable = False
