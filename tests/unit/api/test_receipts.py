"""The endpoints of receipts: what is asked of whom, and that what comes back can be verified."""

from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.api.documentation import describe_inference
from app.api.operations import install_errors
from app.api.receipts import build_receipts_router
from app.receipts.signing import Signer, from_base64, verify
from app.receipts.store import Receipts
from tests.unit.receipts.made import AT, GATE, INSTALLATION_KEY, REQUEST_ID, finished, guards_log

PATH = "/v1/determinism/receipts"
pytestmark = pytest.mark.anyio


class Guards:
    """Replicas' guards that all answer the same, and remember what they were asked."""

    def __init__(self, answer: Mapping[str, Any] | None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    async def admissions(self, replica: str, *, request: str) -> Mapping[str, Any] | None:
        """What the guard of a replica says about a request."""
        self.asked.append((replica, request))
        return self.answer


class Site:
    """The endpoints with one finished request, and guards behind them."""

    def __init__(self, answer: Mapping[str, Any] | None = None, **changed: Any) -> None:
        self.guards = Guards(answer)
        receipts = Receipts(4096, wall=lambda: AT)
        receipts.put(finished(**changed))
        self.signer = Signer(INSTALLATION_KEY)
        self.app = FastAPI()
        self.app.include_router(build_receipts_router(receipts, self.signer, self.guards.admissions))
        install_errors(self.app)
        describe_inference(self.app)

    async def get(self, name: str) -> httpx.Response:
        """Ask for a receipt, or for the key."""
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://gateway") as client:
            return await client.get(f"{PATH}/{name}")


async def test_a_receipt_holds_the_guards_intervals_and_can_be_verified() -> None:
    """The replica's guard is asked once about this request; what it says is in the document that was signed."""
    site = Site(guards_log())
    response = await site.get(REQUEST_ID)

    assert response.status_code == 200
    verified = verify(response.content, [site.signer.public_key])
    assert verified.trusted
    assert verified.receipt.request_id == REQUEST_ID
    assert [interval.sequence for interval in verified.receipt.intervals] == [7]
    assert verified.receipt.intervals_source == "guard"
    assert site.guards.asked == [("127.0.0.1:8001", REQUEST_ID)]


@pytest.mark.parametrize("answer", [None, {"error": "?"}, guards_log() | {"admissions": []}])
async def test_a_receipt_without_intervals_is_signed_all_the_same(answer: Mapping[str, Any] | None) -> None:
    """A guard that is away, talks nonsense or forgot the request costs the intervals, and the receipt says why."""
    site = Site(answer)
    verified = verify((await site.get(REQUEST_ID)).content, [site.signer.public_key])
    assert verified.trusted
    assert (verified.receipt.intervals, verified.receipt.intervals_source) == ((), "none")
    assert "the replica's guard" in (verified.receipt.intervals_reason or "")
    assert len(site.guards.asked) == 1


@pytest.mark.parametrize(("changed", "source"), [({"gate": GATE}, "gateway"), ({"replica": ""}, "none")])
async def test_where_no_guard_was_there_none_is_asked(changed: dict[str, Any], source: str) -> None:
    """The gateway's own gate knows its leases, and a request that was never leased has none."""
    site = Site(guards_log(), **changed)
    verified = verify((await site.get(REQUEST_ID)).content, [site.signer.public_key])
    assert verified.receipt.intervals_source == source
    assert site.guards.asked == []


@pytest.mark.parametrize("name", ["f" * 32, REQUEST_ID.upper(), "nothing", "x" * 1000])
async def test_an_unknown_request_is_a_404_that_says_how_many_are_kept(name: str) -> None:
    """OpenAI's error shape; nobody is asked about a request that this gateway does not know."""
    site = Site(guards_log())
    response = await site.get(name)
    assert response.status_code == 404
    assert response.json() == {
        "error": {
            "message": f"No receipt of request '{name[:80]}' is kept. Receipts live in the memory of the gateway that "
            "answered, the last 4096 of them, and end with its process. So this request has not finished, was refused "
            "before it had a plan, is older than those, or was answered before this gateway started, or by another "
            "one.",
            "type": "invalid_request_error",
            "param": "request_id",
            "code": "not_found",
        }
    }
    assert site.guards.asked == []


async def test_the_public_key_is_the_signers() -> None:
    """What the endpoint names is what receipts are signed with."""
    site = Site()
    answer = (await site.get("key")).json()
    assert answer["algorithm"] == "ed25519"
    assert from_base64(answer["key"], 32) == site.signer.public_key
    assert answer["key"] == (await site.get(REQUEST_ID)).json()["signature"]["key"]


async def test_the_documentation_describes_every_member() -> None:
    """``/docs`` shows the receipt with all of its members as they are answered, and the 404."""
    site = Site(guards_log())
    described = site.app.openapi()
    answer = (await site.get(REQUEST_ID)).json()
    schemas = described["components"]["schemas"]
    for name, members in {
        "SignedReceipt": answer,
        "Receipt": answer["receipt"],
        "Signature": answer["signature"],
        "Interval": answer["receipt"]["intervals"][0],
        "MitigationStatus": answer["receipt"]["mitigations"][0],
    }.items():
        assert set(schemas[name]["properties"]) == set(members)
    assert {"200", "404"} == set(described["paths"][f"{PATH}/{{request_id}}"]["get"]["responses"])
    assert set(described["paths"]) >= {f"{PATH}/key"}
