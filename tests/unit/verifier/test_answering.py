"""How an answer reaches observation. What it says on the wire is in tests/gateway."""

import threading
from dataclasses import replace
from typing import Any, cast

import pytest

from app.observation.exchange import Exchange
from app.reply import Header, Reply
from app.verification.answer import Form, Token
from app.verification.ending import End
from app.verification.rows import Row
from app.verifier.answering import LARGE, Verification
from app.verifier.making import Making
from app.verifier.session import Released

pytestmark = pytest.mark.anyio

FORM = Form(
    path="/v1/completions",
    answer_id="a",
    created=0,
    model="m",
    role="assistant",
    fingerprint="p-1",
    prompt=(1,),
)
TOKEN, ROW = 3, Row((3, 4), (-0.5, -1.5))


class Whole:
    """An answer of one window, as much of `Making` as a whole one needs; `exchange` notes what it is told."""

    form = FORM
    evidence = replace(FORM, token_ids=True, logprobs=2, usage=True)
    lease = None
    peak = 1

    def __init__(self, text: str) -> None:
        self.text = text
        self.told: list[tuple[str, Any]] = []
        self.verifier = self

    async def next(self) -> Released:
        """All of it."""
        return Released(self.text, (Token(TOKEN, self.text),), (ROW,), End("length"))

    def tell(self, _exchange: object, *, stream: bool) -> None:
        """Who answers is no matter here."""
        assert not stream

    def report(self) -> "Whole":
        """Nor what it took."""
        return self

    def facts(self) -> list[tuple[str, object]]:
        """Nothing of it."""
        return []

    def feed(self, piece: bytes) -> None:
        """As the exchange's."""
        self.told.append(("feed", len(piece)))

    def read(self) -> None:
        """As the exchange's."""
        self.told.append(("read", threading.current_thread() is threading.main_thread()))

    def conclude(self, peak: int | None) -> list[tuple[str, object]]:
        """As the exchange's."""
        self.told.append(("conclude", peak))
        return []


async def observed(text: str) -> list[tuple[str, Any]]:
    """What the exchange of a whole answer was told, in order."""
    making, body = Whole(text), bytearray()

    async def send(message: Any) -> None:
        body.extend(message.get("body", b""))

    def no_headers(_lease: object) -> list[Header]:
        return []

    verification = Verification(b"key", comment=True, clock=lambda: 0.0, wall=lambda: 0.0)
    await verification._unary(cast(Making, making), no_headers, Reply(send), cast(Exchange, making))
    assert text.encode() in body
    return making.told


@pytest.mark.parametrize(("text", "apart"), [("short", False), ("x" * LARGE, True)])
async def test_a_large_answer_is_read_beside_the_loop(text: str, apart: bool) -> None:
    """As one that is relayed: before its digest is asked for, and on the loop where it is short."""
    (first, size), *rest = await observed(text)
    assert (first, size > LARGE) == ("feed", apart)
    assert rest == [*([("read", False)] if apart else []), ("conclude", 1)]
