"""What the gateway answers about finished requests: their receipts, and the key that signs them. Off the hot path."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.errors import NotFound
from app.receipts.document import ALGORITHM, SignedReceipt
from app.receipts.signing import Signer, to_base64
from app.receipts.statement import asks_guard, receipt
from app.receipts.store import Receipts

PATH: Final = "/v1/determinism/receipts"

Admissions = Callable[..., Awaitable[Mapping[str, Any] | None]]
"""Takes a replica's name and a query to what its guard's log says; None where it could not be asked."""


class PublicKey(BaseModel):
    """The key that signs this installation's receipts. Get it once, by a way that you trust, and keep it."""

    algorithm: str = Field(examples=[ALGORITHM])
    key: str = Field(description="32 bytes in base64, as `reprise receipt verify --key` takes them.")


def build_receipts_router(receipts: Receipts, signer: Signer, admissions: Admissions) -> APIRouter:
    """The endpoints of receipts."""
    router = APIRouter(prefix=PATH, tags=["receipts"])

    # Before the receipts, whose path would take it: no request id looks like this.
    @router.get("/key", summary="The public key that signs receipts.")
    async def key() -> PublicKey:
        return PublicKey(algorithm=ALGORITHM, key=to_base64(signer.public_key))

    @router.get(
        "/{request_id}",
        summary="The signed receipt of a finished request; `reprise receipt verify` checks it.",
        responses={404: {"description": "No finished request of this id is kept."}},
    )
    async def signed(request_id: str) -> SignedReceipt:
        kept = receipts.get(request_id)
        if kept is None:
            raise NotFound(
                f"No receipt of request '{request_id[:80]}' is kept. Receipts live in the memory of the gateway that "
                f"answered, the last {receipts.limit} of them, and end with its process. So this request has not "
                "finished, was refused before it had a plan, is older than those, or was answered before this gateway "
                "started, or by another one.",
                param="request_id",
            )
        finished = kept.finished
        log = await admissions(finished.replica, request=request_id) if asks_guard(finished) else None
        return signer.sign(receipt(kept, log))

    return router
