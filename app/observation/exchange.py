"""One request from arrival to end, as observation sees it: times, outcome, output, verdict.

The gateway tells an exchange what happened, in order; the exchange keeps counts and hands a finished answer to the
recorder. It adds nothing to the way of the first byte: a stream is looked at after each piece was relayed, and the
digest that the answer carries is made when the answer is complete anyway.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple, Protocol, Self

from prometheus_client import Gauge

from app.determinism.canonical import CohortKeys, canonical, has_remote_media
from app.determinism.mode import Mitigation, Mode
from app.determinism.output import Output
from app.determinism.plan import Plan
from app.determinism.request import InferenceRequest
from app.determinism.sampling import Sampling, takes_likeliest
from app.errors import NotReady, RepriseError
from app.observation.labels import Outcome
from app.observation.metrics import OTHER_MODEL, UNKNOWN, BoundMetrics, LeaseGauges, Metrics
from app.observation.outcomes import outcome_of
from app.observation.recorder import Recorder
from app.observation.store import Observation, Origin, Skip
from app.observation.watch import StreamWatch, UnaryWatch
from app.receipts.store import Finished, GateTimes, Receipts
from app.reply import ClientGone
from app.upstream.word import GuardsWord
from app.verification.report import Report


class Timed(Protocol):
    """A ticket of the gateway's own gate; times in seconds of its clock."""

    asked: float
    granted_at: float | None
    ended_at: float | None


class Done(NamedTuple):
    """What was done for an answer.

    ``mode`` is what the answer counts as: "custom" where a mitigation could not be honoured. ``applied`` is as in
    `Observation`; ``mitigations`` are those applied, ``missing`` those that were not, with the reasons.
    """

    posture: str
    mode: str
    applied: str
    mitigations: tuple[Mitigation, ...]
    missing: Mapping[Mitigation, str]


_NOTHING_DONE: Final = Done("", "", "", (), MappingProxyType({}))

_ERRORS: Final = 400
"""HTTP's border between answers and errors."""

_log = logging.getLogger(__name__)


class Observatory:
    """Makes exchanges. ``clock`` gives seconds; ``installation_key`` keys the cohort keys.

    Without ``recording`` requests are counted and timed, and their answers are not looked at.
    """

    def __init__(
        self,
        metrics: Metrics,
        recorder: Recorder,
        receipts: Receipts,
        *,
        installation_key: bytes,
        clock: Callable[[], float],
        recording: bool = True,
    ) -> None:
        self.metrics = metrics
        self.recorder = recorder
        self.receipts = receipts
        self.clock = clock
        self.recording = recording
        self._keys = CohortKeys(installation_key)
        self._leases: dict[str, LeaseGauges] = {}

    def exchange(self, request_id: str, origin: Origin = Origin.CLIENT) -> "Exchange":
        """The exchange of a request that arrives now; use it as a context manager."""
        return Exchange(self, request_id, origin)

    def leases(self, replica: str, admission: str) -> Gauge:
        """The gauge of the leases on a replica."""
        gauges = self._leases.get(replica)
        if gauges is None:
            gauges = self._leases[replica] = self.metrics.leases(replica)
        return gauges.exclusive if admission == "exclusive" else gauges.shared

    @contextmanager
    def holding(self, replica: str, admission: str) -> Iterator[None]:
        """Show a lease on a replica for as long as it is entered."""
        gauge = self.leases(replica, admission)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def cohort_key(self, request: InferenceRequest, plan: Plan) -> str:
        """The cohort key of a request for the model as served. A window is a part of what was asked."""
        said = canonical(request, plan.model)
        return self._keys.of(said if plan.window is None else b"%b\x00window %d" % (said, plan.window))


class Exchange:
    """What is known of one request so far."""

    __slots__ = (
        "_admission",
        "_bound",
        "_cohort_key",
        "_comparable",
        "_done",
        "_first_piece_at",
        "_held",
        "_last_piece_at",
        "_observatory",
        "_origin",
        "_output",
        "_peak",
        "_pieces",
        "_plan",
        "_replica",
        "_request",
        "_request_id",
        "_run",
        "_sampling",
        "_started",
        "_status",
        "_streams",
        "_submitted",
        "_ticket",
        "_verification",
        "_waited",
        "_watch",
    )

    def __init__(self, observatory: Observatory, request_id: str, origin: Origin) -> None:
        self._observatory = observatory
        self._request_id = request_id
        self._origin = origin
        self._run: str | None = None
        self._started = observatory.clock()
        self._bound: BoundMetrics = observatory.metrics.of(OTHER_MODEL, UNKNOWN)
        self._request: InferenceRequest | None = None
        self._plan: Plan | None = None
        self._sampling: Sampling | None = None
        self._watch: StreamWatch | UnaryWatch | None = None
        self._streams = False
        self._replica = ""
        self._admission = ""
        self._held = False
        self._verification: Report | None = None
        self._done = _NOTHING_DONE
        self._ticket: Timed | None = None
        self._output: str | None = None
        self._cohort_key: str | None = None
        self._status = 0
        self._waited = 0.0
        self._first_piece_at = self._last_piece_at = 0.0
        self._pieces = 0
        self._submitted = False
        self._comparable = False
        self._peak: int | None = None

    @property
    def repeatable_mode(self) -> Mode | None:
        """The mode of an answer that could be compared; None where it could not be, or there is none."""
        return self._plan.mode if self._plan is not None and self._comparable else None

    def labelled(self, run: str | None) -> None:
        """The run that the request belongs to."""
        self._run = run

    def planned(self, request: InferenceRequest, plan: Plan, sampling: Sampling) -> None:
        """What will be done for the request."""
        self._request, self._plan, self._sampling = request, plan, sampling
        self._bound = self._observatory.metrics.of(plan.model or OTHER_MODEL, plan.mode)

    def leased(self, replica: str, admission: str, waited: float, ticket: Timed | None) -> None:
        """A replica was found; ``waited`` is in seconds, ``ticket`` of the gateway's own gate."""
        self._replica, self._admission, self._ticket = replica, admission, ticket
        self._waited += waited
        self._held = True
        self._observatory.leases(replica, admission).inc()

    def served(self, replica: str, admission: str, waited: float) -> None:
        """A replica served the request under leases of its own; ``waited`` is in seconds, in all."""
        self._replica, self._admission, self._waited = replica, admission, waited

    def verified(self, report: Report) -> None:
        """What it took to verify the answer, complete or not."""
        self._verification = report
        self._observatory.metrics.verification.count(report)

    def unreached(self) -> None:
        """The replica that was found could not be reached, and another one is asked for."""
        if self._held:
            self._observatory.leases(self._replica, self._admission).dec()
            self._held = False
        self._replica, self._admission, self._ticket = "", "", None

    def answered(self, status: int, word: GuardsWord, done: Done) -> None:
        """The answer's headers came."""
        self._status, self._done, self._peak = status, done, word.peak
        self._waited += word.waited
        if self._origin is Origin.CLIENT:
            self._observatory.metrics.admission_wait[self._admission].observe(self._waited)
        if self._plan is not None and done.mode != self._plan.mode:
            self._bound = self._observatory.metrics.of(self._plan.model or OTHER_MODEL, done.mode)

    def watch(self, *, stream: bool) -> None:
        """Look at the body that follows."""
        assert self._request is not None  # noqa: S101 - the order of calls; never depends on input
        self._streams = stream
        if self._observatory.recording:
            self._watch = StreamWatch(self._request.path) if stream else UnaryWatch(self._request.path)

    def feed(self, piece: bytes) -> None:
        """Bytes of the body, after they were relayed or, for a unary answer, read."""
        self._pieces += 1
        self._last_piece_at = self._observatory.clock()
        if self._pieces == 1 and self._streams:
            self._first_piece_at = self._last_piece_at
            if self._origin is Origin.CLIENT:
                exemplar = {"request_id": self._request_id}
                self._bound.time_to_first_token.observe(self._first_piece_at - self._started, exemplar)
        if self._watch is not None:
            self._watch.feed(piece)

    def read(self) -> None:
        """Read an answer that is complete, ahead of `conclude`; on any thread, while nothing else happens here."""
        try:
            if self._watch is not None:
                self._watch.output()
        except Exception:  # noqa: BLE001 - observation fails open; it is logged
            _log.exception("the answer to request %s could not be read", self._request_id)

    def conclude(self, peak: int | None) -> list[tuple[str, object]]:
        """The answer is complete: what it can say of itself, as (name, value) pairs; unknown facts are left out."""
        self._peak = peak if peak is not None else self._peak
        facts: list[tuple[str, object]] = []
        if self._peak is not None:
            if self._origin is Origin.CLIENT:
                self._bound.coresident_peak.observe(self._peak)
            facts.append(("coresident_peak", self._peak))
        if self._status < _ERRORS:
            # How long a request waited that its replica then refused, the gateway was not told.
            facts.append(("admission_wait", f"{self._waited:.6f}"))
        if self._status < _ERRORS and self._watch is not None:
            facts += self._compared(self._watch)
        return facts

    def _compared(self, watch: StreamWatch | UnaryWatch) -> list[tuple[str, object]]:
        """Digest and verdict of the answer."""
        try:
            output = watch.output()
            verdict = self._submit(output, self._skip())
        except Exception:  # noqa: BLE001 - see below; it is logged
            # Observation fails open: the answer is complete and the caller's, whatever is wrong in here.
            _log.exception("the answer to request %s could not be observed", self._request_id)
            return []
        if output is None:
            return [("verdict", verdict)]
        if self._origin is Origin.CLIENT:
            self._bound.output_tokens.inc(output.tokens if output.tokens is not None else watch.pieces)
        self._output = output.digest
        return [("output", output.digest), ("verdict", verdict)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held:
            self._observatory.leases(self._replica, self._admission).dec()
        outcome = outcome_of(error, self._status)
        self._count(outcome, error)
        if 0 < self._status < _ERRORS and self._watch is not None and not self._submitted:
            skip = Skip.CLIENT_CLOSED if outcome is Outcome.CLIENT_CLOSED else Skip.INCOMPLETE
            self._submit(None, skip)
        if self._plan is not None:
            self.keep_receipt(outcome, error)

    def _count(self, outcome: Outcome, error: BaseException | None) -> None:
        """The request's end. What the gateway sent itself is in no figure of the clients'."""
        metrics, now = self._observatory.metrics, self._observatory.clock()
        if self._origin is not Origin.CLIENT:
            mode = self._plan.mode if self._plan is not None else UNKNOWN
            metrics.requests(OTHER_MODEL, mode, self._origin)[outcome].inc()
            return
        if isinstance(error, RepriseError) and self._plan is not None:
            # What was refused because it could not be honoured is a request of the mode that it asked for.
            self._bound = metrics.of(self._plan.model or OTHER_MODEL, self._plan.mode)
        self._bound.requests[outcome].inc()
        self._bound.request_seconds.observe(now - self._started, {"request_id": self._request_id})
        if self._pieces > 1 and self._streams:
            self._bound.inter_token.observe((self._last_piece_at - self._first_piece_at) / (self._pieces - 1))

    def keep_receipt(self, outcome: Outcome = Outcome.OK, error: BaseException | None = None) -> None:
        """Keep what a receipt of the request would state now; again, where its end was another one."""
        assert self._request is not None  # noqa: S101 - the order of calls; never depends on input
        assert self._plan is not None  # noqa: S101 - as above
        assert self._sampling is not None  # noqa: S101 - as above
        self._observatory.receipts.put(
            Finished(
                self._request_id,
                self._request.path,
                self._plan,
                self._sampling,
                outcome,
                self._seen_status(error),
                self._done.mitigations,
                self._done.missing,
                self._admission,
                self._replica,
                self._done.posture,
                self._peak,
                self._waited,
                self._output,
                self._cohort_key,
                _gate_times(self._ticket, self._observatory.clock()),
                self._verification,
            )
        )

    def _seen_status(self, error: BaseException | None) -> int:
        """The status that the client was sent; 0 where it had gone before one was."""
        if error is None or self._streams:
            return self._status
        if isinstance(error, ClientGone):
            return 0
        if isinstance(error, asyncio.CancelledError):
            return NotReady.status  # the server's shutdown
        return error.status if isinstance(error, RepriseError) else RepriseError.status

    def _submit(self, output: Output | None, skip: str | None) -> str:
        assert self._request is not None  # noqa: S101 - the order of calls; never depends on input
        assert self._plan is not None  # noqa: S101 - the order of calls; never depends on input
        assert self._sampling is not None  # noqa: S101 - the order of calls; never depends on input
        self._submitted = True
        self._comparable = skip is None and output is not None
        self._cohort_key = self._observatory.cohort_key(self._request, self._plan)
        observation = Observation(
            request_id=self._request_id,
            cohort_key=self._cohort_key,
            model=self._plan.model or OTHER_MODEL,
            mode=self._done.mode,
            replica=self._replica,
            posture=self._done.posture,
            coresident_peak=self._peak,
            output=output,
            skip_reason=skip,
            applied=self._done.applied,
            origin=self._origin,
            run=self._run,
            greedy=self._comparable and takes_likeliest(self._request.members, self._sampling),
        )
        return self._observatory.recorder.submit(observation)

    def _skip(self) -> str | None:
        """Why the answer is comparable to nothing. Asked after the output was read."""
        assert self._watch is not None  # noqa: S101 - the order of calls; never depends on input
        if self._watch.skip_reason is not None:
            return self._watch.skip_reason
        if self._sampling is not None and not self._sampling.repeatable:
            return Skip.UNSEEDED_SAMPLING
        if self._request is not None and has_remote_media(self._request.members):
            return Skip.REMOTE_MEDIA
        return None


def _gate_times(ticket: Timed | None, now: float) -> GateTimes | None:
    if ticket is None or ticket.granted_at is None:
        return None
    ended = now if ticket.ended_at is None else ticket.ended_at
    return GateTimes(*(round(moment * 1e6) for moment in (ticket.asked, ticket.granted_at, ended)))
