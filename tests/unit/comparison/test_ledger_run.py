"""Runs from a gateway's ledger: pages are followed, and what a server may answer instead is a clear error."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.comparison.entry import NotComparable, Side
from app.comparison.extraction import by_path, by_regex, extract
from app.comparison.ledger_run import read_run

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["answers", "number", "cohort", "key", "text"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def stored(number: int, **members: Any) -> dict[str, Any]:
    """An answer as the observatory tells it."""
    cohort = {"key": f"key-{number}", "mode": "isolated", "posture": "p-1"}
    told = {"number": number, "cohort": cohort, "output": "o-1", "request_id": "r", "at": 1.0, "text": None}
    return {**told, **members}


def reading(handler: Callable[[httpx.Request], httpx.Response], label: str = "a") -> Side:
    with httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(handler)) as client:
        return read_run(client, label)


def test_pages_are_followed_to_the_end() -> None:
    """Each question begins after the last number, until there is nothing more."""
    asked: list[tuple[str, str]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, request.url.params["after"]))
        known = [number for number in (2, 5, 9) if number > int(request.url.params["after"])]
        return httpx.Response(200, json={"answers": [stored(number) for number in known[:2]]})

    side = reading(handler)

    assert asked == [("/observatory/api/runs/a", after) for after in ("0", "5", "9")]
    assert [entry.place for entry in side.entries] == ["answer 2", "answer 5", "answer 9"]
    assert (side.name, side.only_texts, dict(side.modes), dict(side.postures)) == (
        "run:a",
        True,
        {"isolated": 3},
        {"p-1": 3},
    )


def test_texts_are_kept_texts() -> None:
    """One per choice; half a character, which JSON can carry, becomes a question mark; the digest is the ledger's."""
    text = json.dumps(["one", "tw\ud800"])

    def handler(request: httpx.Request) -> httpx.Response:
        answers = [] if request.url.params["after"] == "1" else [stored(1, text=text)]
        return httpx.Response(200, json={"answers": answers})

    (entry,) = reading(handler).entries

    assert entry.output is not None
    assert [choice.text for choice in entry.output.choices] == ["one", "tw?"]
    assert entry.digest == "o-1"


def test_results_are_looked_for_in_what_was_said() -> None:
    """As in files: never in the reasoning, and in the first tool call where there is no text."""
    thinking = {"reasoning": "first guess #### 7", "text": "so #### 42"}
    calling = {"reasoning": "#### 7", "tool_calls": [["f", '{"x":1}']]}

    def handler(request: httpx.Request) -> httpx.Response:
        answers = [] if request.url.params["after"] == "1" else [stored(1, text=json.dumps([thinking, calling]))]
        return httpx.Response(200, json={"answers": answers})

    (entry,) = reading(handler).entries

    assert entry.output is not None
    assert extract(entry.output, by_regex(r"#### (\d+)")) is None
    assert extract(entry.output._replace(choices=entry.output.choices[:1]), by_regex(r"#### (\d+)")) == ("42",)
    assert extract(entry.output._replace(choices=entry.output.choices[1:]), by_path("x")) == ("1",)


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (httpx.Response(401, json={"error": {"message": "x"}}), "refuses the key; give --key"),
        (httpx.Response(403, json={"error": {"message": "has no key"}}), "HTTP 403: has no key"),
        (httpx.Response(404, text="Not Found"), "HTTP 404: Not Found"),
        (httpx.Response(200, json={"answers": []}), "knows no answer of it"),
        (httpx.Response(200, text="<html>"), "is no observatory"),
        (httpx.Response(200, json={"answers": 3}), "is no observatory"),
        (httpx.Response(200, json={"answers": [{"number": 1}]}), "in another shape"),
        (httpx.Response(200, json={"answers": [stored(1)]}), "numbers that do not grow"),
        (httpx.Response(200, json={"answers": [stored(1, text="no json")]}), "in another shape"),
        (httpx.Response(200, json={"answers": [stored(1, text="[" * 9999)]}), "in another shape"),
    ],
)
def test_another_answer_is_a_clear_error(response: httpx.Response, said: str) -> None:
    """One line, whatever came; a server that never comes to an end among it."""
    with pytest.raises(NotComparable, match=said):
        reading(lambda _: response)


@settings(deadline=None)
@given(JSON)
def test_no_json_crashes_it(content: object) -> None:
    """Any JSON is a run or a clear error."""
    pages = iter([content])

    def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=next(pages, {"answers": []}))

    try:
        assert reading(handler).entries
    except NotComparable as error:
        assert str(error)  # noqa: PT017 - either outcome is right


def test_a_server_that_is_not_there_is_named() -> None:
    """With the address and the reason."""

    def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(NotComparable, match=r"cannot reach http://gateway.*connection refused"):
        reading(handler)


@pytest.mark.parametrize("label", ["", "a/b", "../x", "a b", "\u00e9", "x" * 65])
def test_what_is_no_label_is_never_asked_for(label: str) -> None:
    """It could be a path of its own."""
    with pytest.raises(NotComparable, match="a label has 1 to 64"):
        reading(lambda _: pytest.fail("asked"), label)
