"""A draft that goes wrong is a draft of no tokens."""

import asyncio
from typing import Any, cast

import pytest

from app.determinism.mode import Mode
from app.determinism.plan import Plan
from app.errors import DeterminismUnavailable, NotReady, QueueFull, RepriseError, UpstreamError
from app.upstream.replica import Replica
from app.verifier.drafts import Drafter
from app.verifier.errands import Lost, Sender, Told

pytestmark = pytest.mark.anyio


SOME = Replica.at("http://127.0.0.1:1")


class Asked:
    """A sender that notes what is sent and answers what the test says."""

    request_id = "r"

    def __init__(self, answer: object, *, others: bool = False) -> None:
        self.answer = answer
        self.others = others
        self.sent: list[tuple[Plan, str, str, Any]] = []
        self.avoided: list[Replica | None] = []
        self.scheduler = self

    def another(self, plan: Plan, without: Replica) -> bool:
        """As the scheduler's."""
        assert (plan.mode, without) == (Mode.STANDARD, SOME)
        return self.others

    async def leased(
        self, plan: Plan, path: str, name: str, content: object, *, without: Replica | None, patience: float
    ) -> Told:
        """Answer, or raise."""
        assert patience == 5
        self.sent.append((plan, path, name, content))
        self.avoided.append(without)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return Told(self.answer, cast(Any, None), None)


def drafter(asked: Asked, model: str | None = "m", **ending: object) -> Drafter:
    return Drafter(cast(Sender, asked), model, ending, patience=5)


def ids(*tokens: int) -> dict[str, Any]:
    return {"choices": [{"token_ids": list(tokens)}]}


async def test_it_asks_greedily_in_the_shared_batch() -> None:
    """By ids, without what a model's own defaults would change, and each draft under a name of its own."""
    asked = Asked(ids(7, 8))
    maker = drafter(asked, stop_token_ids=[5])
    assert [await maker.draft([1, 2], 3), await maker.draft([1, 2, 7], 2)] == [[7, 8], [7, 8]]
    (plan, path, first, content), (_, _, second, _) = asked.sent
    assert (plan, path, first, second) == (Plan(Mode.STANDARD, "m"), "/v1/completions", "d1", "d2")
    assert content == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 3,
        "temperature": 0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "return_token_ids": True,
        "stream": False,
        "stop_token_ids": [5],
    }


async def test_without_a_model_none_is_named() -> None:
    """The caller named none, so the engine's own is asked."""
    asked = Asked(ids())
    await drafter(asked, None).draft([1], 1)
    assert "model" not in asked.sent[0][3]


async def test_an_end_that_cannot_be_yet_is_not_drafted() -> None:
    """While ``min_tokens`` are not there, as many as the draft has room for."""
    asked = Asked(ids())
    maker = drafter(asked)
    for fewest in (-1, 0, 2, 9):
        await maker.draft([1], 4, fewest)
    assert [content.get("min_tokens") for *_, content in asked.sent] == [None, None, 2, 4]


@pytest.mark.parametrize(
    "error",
    [
        UpstreamError("x"),
        NotReady("x"),
        QueueFull("x"),
        DeterminismUnavailable("x"),
        Lost(SOME, NotReady("x")),
    ],
)
async def test_whoever_fails_drafts_nothing(error: RepriseError, caplog: pytest.LogCaptureFixture) -> None:
    """It is in the log, once for an answer, and no error of the answer's."""
    maker = drafter(Asked(error))
    assert [await maker.draft([1], 4), await maker.draft([1], 4)] == [[], []]
    assert caplog.text.count("request r has no draft: x") == 1


@pytest.mark.parametrize("others", [False, True])
async def test_who_failed_is_not_asked_again_while_there_is_another(*, others: bool) -> None:
    """It would cost every window a failure; the only one there is, is asked again. Other failures blame nobody."""
    asked = Asked(Lost(SOME, NotReady("x")), others=others)
    maker = drafter(asked)
    await maker.draft([1], 4)
    asked.answer = NotReady("nobody is there")
    await maker.draft([1], 4)
    asked.answer = ids(7)
    assert await maker.draft([1], 4) == [7]
    assert asked.avoided == [None, *[SOME if others else None] * 2]


async def test_a_client_that_leaves_is_no_failed_draft() -> None:
    """Its cancel goes through."""
    with pytest.raises(asyncio.CancelledError):
        await drafter(Asked(asyncio.CancelledError())).draft([1], 4)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (None, []),
        ([], []),
        ({"choices": []}, []),
        ({"choices": [{}]}, []),
        ({"choices": [{"token_ids": None}]}, []),
        ({"choices": [{"token_ids": "12"}]}, []),
        ({"choices": 5}, []),
        ({"error": {"message": "late"}}, []),
        ({"choices": [{"token_ids": [1, "2", None, 3.0, True, -4, 2**70]}]}, [1, -4, 2**70]),
    ],
)
async def test_what_is_no_token_is_left_out(said: object, expected: list[int]) -> None:
    """Which of them are in the vocabulary, the decoding says."""
    assert await drafter(Asked(said)).draft([1], 7) == expected


async def test_a_draft_is_no_longer_than_asked() -> None:
    """Whoever drafts on would be counted for what no pass can use."""
    assert await drafter(Asked(ids(7, 8, 9))).draft([1], 2) == [7, 8]
