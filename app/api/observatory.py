"""``/observatory``: the page for looking closely, and the JSON that it is made of. FastAPI, off the hot path.

Everything under it needs the observatory key, as a bearer token or as the password of HTTP's basic authentication, for
which a browser asks by itself. Without a key it is shown to nobody but the machine itself.
"""

import base64
import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, TypeVar

import anyio.to_thread
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from app.api.observatory_state import told_canaries, told_counts, told_recent
from app.api.operations import replica_states
from app.api.receipts import Admissions
from app.determinism.divergence import NEAR_NATS, TIE_NATS
from app.determinism.mode import DETERMINISTIC_MODES, REQUESTABLE_MODES
from app.errors import Forbidden, NotFound, NotReady, Unauthorized
from app.measuring.schedule import Schedule
from app.observation.history import ComparisonHistory, GateHistory
from app.observation.metrics import Metrics
from app.observation.recorder import Recorder
from app.observation.store import CohortId, CohortSummary, Origin, Specimen, Store, StoreError
from app.observation.summary import compared
from app.receipts.store import Receipts
from app.scheduling.scheduler import Scheduler
from app.scheduling.ticket import Admission

PATH: Final = "/observatory"
_MOST: Final = 500
_LARGEST: Final = 2**63 - 1
_FORWARDING: Final = re.compile(
    r"forwarded|via|x-forwarded(-.*)?|x-original-.*|x-real-ip|cf-.*|(true|x|x-cluster|fastly)-client-ip"
)
"""Headers that proxies add, in lower case, and browsers do not."""

_OLD_HTTP: Final = "1.0"
_RUNS: Final = 200
_PAGE: Final = 1000
_COHORT_CHARACTERS: Final = 2**18
"""Characters of kept texts in one cohort, beside those of the pair that is shown; the page asks every ten seconds."""

_SECURITY: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

Assets = Mapping[str, tuple[str, bytes]]
"""Files of the page by name: content type and bytes. The page itself is ``index.html``."""

Answer = TypeVar("Answer")


class Gatekeeper:
    """Lets in who has the key. ``host`` is the address that the gateway listens on."""

    def __init__(self, key: str | None, host: str) -> None:
        self._key = key.encode() if key else None
        self._alone = _is_loopback(host)

    def __call__(self, request: Request) -> None:
        """Raises Unauthorized and Forbidden."""
        if self._key is None:
            if not (self._alone and _is_from_here(request)):
                raise Forbidden(
                    "The observatory has no key, so it is shown to this machine alone: set REPRISE_OBSERVATORY_KEY, "
                    "or listen on 127.0.0.1 and open it by that address."
                )
            return
        given = _credentials(request.headers.get("authorization", ""))
        if given is None or not hmac.compare_digest(given, self._key):
            raise Unauthorized("The observatory's key is missing or wrong.", realm="Reprise observatory")


@dataclass(frozen=True, slots=True)
class Page:
    """What the page shows. ``facts`` never change while the gateway runs; without a ``schedule`` no canary is sent."""

    metrics: Metrics
    recorder: Recorder
    scheduler: Scheduler
    history: GateHistory
    comparisons: ComparisonHistory
    schedule: Schedule | None
    receipts: Receipts
    admissions: Admissions
    facts: Mapping[str, Any]

    async def ask(self, question: Callable[[Store], Answer]) -> Answer:
        """Read the ledger. Raises NotReady where it is away."""
        try:
            return await self.recorder.ask(question)
        except StoreError as exc:
            raise NotReady(f"The ledger cannot be read: {exc}.", retry_after=1.0) from exc

    def has_receipt(self, request_id: str | None) -> bool:
        """Whether a request's receipt can be had now: a link to any other one would lead nowhere."""
        return request_id is not None and self.receipts.get(request_id) is not None


def build_observatory_router(keeper: Gatekeeper, assets: Assets, page: Page) -> APIRouter:
    """The page and its data."""
    router = APIRouter(prefix=PATH, tags=["observatory"], dependencies=[Depends(keeper)])
    _add_state(router, page)
    _add_cohorts(router, page)
    _add_runs(router, page)

    @router.get("", include_in_schema=False)
    async def index() -> Response:
        return _asset(assets, "index.html")

    @router.get("/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        return _asset(assets, name)

    return router


def _add_state(router: APIRouter, page: Page) -> None:
    @router.get("/api/state", summary="Rates by mode with their bounds, replicas, and how the ledger is.")
    async def state() -> Response:
        told, counts = await anyio.to_thread.run_sync(lambda: (told_counts(page.metrics), compared(page.metrics)))
        now = time.time()  # noqa: TID251 - the page shows the time of day
        return _json(
            {
                "now": now,
                "started": page.comparisons.began,
                "receipts": page.receipts.limit,
                **page.facts,
                **told,
                "recent": told_recent(page.comparisons.recent(counts)),
                "canaries": told_canaries(page.schedule, now),
                "replicas": replica_states(page.scheduler),
                "ledger": {"problem": page.recorder.problem, "queued": page.recorder.queued, **told["ledger"]},
                "margins": {"tie": TIE_NATS, "near": NEAR_NATS},
                "known_modes": REQUESTABLE_MODES,
                "deterministic_modes": sorted(DETERMINISTIC_MODES),
            }
        )

    @router.get("/api/timeline", summary="What the probes saw of each replica's gate since a moment.")
    async def timeline(since: Annotated[float, Query(allow_inf_nan=False)] = 0.0) -> Response:
        names = [replica.name for replica in page.scheduler.slots]
        return _json({name: [asdict(sample) for sample in page.history.since(name, since)] for name in names})

    @router.get("/api/admissions/{replica}", summary="Who was admitted on a replica, by its guard's log.")
    async def admitted(
        replica: str,
        after: Annotated[int, Query(ge=0, le=_LARGEST)] = 0,
        exclusive: bool = False,  # noqa: FBT001, FBT002 - a query parameter
    ) -> Response:
        if replica not in {known.name for known in page.scheduler.slots}:
            raise NotFound(f"There is no replica '{replica[:80]}'.", param="replica")
        said = await page.admissions(replica, after=after)
        if said is None:
            raise NotReady(f"The guard of '{replica[:80]}' cannot be asked.", retry_after=1.0)
        rows = [
            {**row, "receipt": page.has_receipt(row.get("request"))}
            for row in said.get("admissions", ())
            if not exclusive or row.get("admission") == Admission.EXCLUSIVE
        ]
        return _json({**said, "admissions": rows})


def _add_cohorts(router: APIRouter, page: Page) -> None:
    @router.get("/api/cohorts", summary="The cohorts seen last.")
    async def cohorts(
        limit: Annotated[int, Query(ge=1, le=_MOST)] = 50,
        before: Annotated[float | None, Query(allow_inf_nan=False)] = None,
        mode: str | None = None,
        diverged: bool = False,  # noqa: FBT001, FBT002 - a query parameter
        origin: Origin | None = None,
    ) -> Response:
        # Origins are no index of a store: they are looked for among the cohorts seen last.
        most = limit if origin is None else _MOST
        found = await page.ask(lambda store: store.cohorts(limit=most, before=before, mode=mode, diverged=diverged))
        told = [each for each in found if origin is None or origin in each.origins][:limit]
        return _json({"cohorts": [_told(each) for each in told], "searched": len(found)})

    @router.get("/api/cohorts/{key}/{mode}/{posture}", summary="A cohort: its outputs, side by side.")
    async def cohort(
        key: str, mode: str, posture: str, beside: Annotated[str | None, Query(alias="with")] = None
    ) -> Response:
        wanted = CohortId(key, mode, posture)
        found, specimens = await page.ask(lambda store: (store.load(wanted), store.specimens(wanted)))
        if found is None:
            raise NotFound("There is no such cohort.", param="key")
        return _json(
            {
                "id": wanted._asdict(),
                "model": found.model,
                "reference": found.reference.digest,
                "observed": found.counts.observed,
                "matched": found.counts.matched,
                "diverged": found.counts.diverged,
                "counts": found.counts.outputs,
                "first_seen": found.first_seen,
                "last_seen": found.last_seen,
                "outputs": [
                    each | {"receipt": page.has_receipt(each["request_id"])}
                    for each in told_outputs(specimens, found.reference.digest, beside)
                ],
            }
        )


def _add_runs(router: APIRouter, page: Page) -> None:
    @router.get("/api/runs", summary="The runs that were answered last.")
    async def runs(limit: Annotated[int, Query(ge=1, le=_MOST)] = _RUNS) -> Response:
        known = await page.ask(lambda store: store.runs(limit=limit))
        return _json({"runs": [{"label": label, "answers": count} for label, count in known]})

    @router.get("/api/runs/{label}", summary="The answers of a run, in order; ask on until none comes.")
    async def run(
        label: str,
        after: Annotated[int, Query(ge=0, le=_LARGEST)] = 0,
        limit: Annotated[int, Query(ge=1, le=_PAGE)] = _PAGE,
    ) -> Response:
        found = await page.ask(lambda store: store.run(label, after=after, limit=limit))
        told = [
            asdict(each) | {"cohort": each.cohort._asdict(), "receipt": page.has_receipt(each.request_id)}
            for each in found
        ]
        return _json({"label": label, "answers": told})


def told_outputs(
    specimens: Sequence[tuple[Specimen, int]], reference: str, beside: str | None = None
) -> list[dict[str, Any]]:
    """A cohort's distinct outputs as the page gets them.

    The reference and the output ``beside`` it (the first other one, where there is none of that digest) have their
    texts. So have the others while there is room; then ``text_left_out`` says that a text is kept and not told.
    """
    rivals = [each.digest for each, _ in specimens if each.digest != reference]
    pair = {reference, *([beside] if beside in rivals else rivals[:1])}
    room, outputs = _COHORT_CHARACTERS, []
    for specimen, seen in specimens:
        left_out = False
        if specimen.text is not None and specimen.digest not in pair:
            left_out = len(specimen.text) > room
            room -= 0 if left_out else len(specimen.text)
        told = {"text": None} if left_out else {}
        outputs.append(asdict(specimen) | told | {"text_left_out": left_out, "seen": seen})
    return outputs


def _told(cohort: CohortSummary) -> dict[str, Any]:
    return asdict(cohort) | {"id": cohort.id._asdict()}


def _json(content: object) -> Response:
    return JSONResponse(content, headers=dict(_SECURITY))


def _asset(assets: Assets, name: str) -> Response:
    known = assets.get(name)
    if known is None:
        raise NotFound(f"There is no path '{PATH}/{name[:80]}' here.")
    kind, content = known
    return Response(content, media_type=kind, headers=dict(_SECURITY))


def _credentials(header: str) -> bytes | None:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("latin-1")  # as the server decoded it, whatever bytes they were
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(value, validate=True).partition(b":")[2]
    except ValueError:
        return None


def _is_from_here(request: Request) -> bool:
    """Whether a request was written on this machine, as far as it tells.

    A name that leads here may be a proxy's, or a hostile page's that was pointed at this machine; and a proxy on this
    machine speaks for the others. Most tell that they are one by a header, or by HTTP/1.0, in which nginx has asked by
    default and no browser does. One that tells nothing cannot be told from a browser: hence the key.
    """
    if request.scope.get("http_version") == _OLD_HTTP or any(map(_FORWARDING.fullmatch, request.headers)):
        return False
    named = request.headers.get("host", "").rpartition("@")[2]
    host = named.partition("]")[0].removeprefix("[") if named.startswith("[") else named.partition(":")[0]
    return _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
