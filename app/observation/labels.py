"""The values of labels: what is counted apart on the metrics page."""

from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended, as counted in ``reprise_requests_total``."""

    OK = "ok"
    INVALID = "invalid"
    UNAVAILABLE = "unavailable"
    UPSTREAM_ERROR = "upstream_error"
    INCOMPLETE = "incomplete"
    CLIENT_CLOSED = "client_closed"
    OTHER = "other"


class Cause(StrEnum):
    """What is known to have differed between a diverged answer and its reference; a suspect, not a proof.

    One cause is counted, the first that holds in this order. Co-batching comes first because it alone makes most
    answers differ where it is present; a different cache state is next, known to change an answer on its own; another
    replica of the same posture should not matter, so it is suspected only when neither of these holds.
    """

    CO_BATCHED = "co_batched"
    CACHE_STATE = "cache_state"
    OTHER_REPLICA = "other_replica"
    UNEXPLAINED = "unexplained"


class Drop(StrEnum):
    """Why an observation did not reach the ledger."""

    QUEUE_FULL = "queue_full"
    STORE_ERROR = "store_error"
    STORE_UNAVAILABLE = "store_unavailable"
    INTERNAL_ERROR = "internal_error"
    SHUTDOWN = "shutdown"


class Cross(StrEnum):
    """What differs between two cohorts of one canonical request that are compared across."""

    MODE = "mode"
    POSTURE = "posture"
