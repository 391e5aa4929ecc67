"""Text is released as far as it is final: what a stop string could take back waits."""

from typing import Any

import orjson
import pytest

from app.determinism.request import parse
from app.errors import UpstreamError
from app.verification.ending import End
from app.verification.request import read_wanted
from app.verifier.text import Piece, Stop, Text
from tests.unit.verification.test_request import MODEL


def text_of(**members: Any) -> Text:
    body = orjson.dumps({"temperature": 0, "prompt": "x", **members})
    wanted = read_wanted(parse("/v1/completions", body), MODEL, window=8, most_logprobs=20)
    return Text(wanted, range(100))


def told(text: str, stop: Any = None, decoded: Any = ()) -> dict[str, Any]:
    return {"text": text, "stop": stop, "decoded": list(decoded)}


def test_the_question_holds_what_the_caller_said_of_the_text() -> None:
    """And all of the prompt: from its end alone, cut inside a character, a detokenizer would write another text."""
    text = text_of(stop=["a", "bc"], skip_special_tokens=False, include_stop_str_in_output=True, min_tokens=3)
    asked = text.question([1, 2], End("stop", 2), [[2, 3]])
    assert asked == {
        "prompt": list(range(100)),
        "ids": [1, 2],
        "skip_special_tokens": False,
        "spaces_between_special_tokens": True,
        "stop": ["a", "bc"],
        "include_stop_str_in_output": True,
        "min_tokens": 3,
        "ended": True,
        "decode": [[2, 3]],
    }
    assert text.question([1], End("length"), [])["ended"] is False
    assert text.question([1], None, [])["ended"] is False


def test_without_stop_strings_everything_is_released_at_once() -> None:
    """Each piece is what came after the last one, also where nothing did."""
    text = text_of()
    pieces = []
    for whole in ("ab", "ab", "abcd"):
        text.question([1, 2, 3], None, [])
        pieces.append(text.read(told(whole)).text)
    assert pieces == ["ab", "", "cd"]


def test_one_character_less_than_the_longest_stop_string_is_held_back() -> None:
    """Until the answer ends, or the string is found."""
    text = text_of(stop=["xyz", "y"])
    text.question([1], None, [])
    assert text.read(told("a")) == Piece("", None, [])
    text.question([1, 2], None, [])
    assert text.read(told("abcd")).text == "ab"
    text.question([1, 2], None, [])
    assert text.read(told("abc")).text == "", "what is out stays out"
    text.question([1, 2, 3], End("length"), [])
    assert text.read(told("abcde")).text == "cde"


def test_a_stop_string_releases_what_is_before_it() -> None:
    """Found in text of a token that is new; the cut is the engine's."""
    text = text_of(stop="xyz")
    text.question([1, 2], None, [])
    assert text.read(told("abcx")).text == "ab"
    text.question([1, 2, 3, 4], None, [])
    assert text.read(told("abc", {"index": 2, "string": "xyz"})) == Piece("c", Stop(2, "xyz"), [])


def test_an_included_stop_string_needs_no_holding_back() -> None:
    """Nothing of it is ever taken back."""
    text = text_of(stop="xyz", include_stop_str_in_output=True)
    text.question([1], None, [])
    assert text.read(told("abxy")).text == "abxy"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "wrote no text"),
        ({}, "wrote no text"),
        ({"error": {"message": "late"}}, "wrote no text"),
        (told("ab") | {"text": 1}, "wrote no text"),
        (told("ab") | {"text": ["ab"]}, "wrote no text"),
        (told("ab", {"index": "1", "string": "x"}, [["a"]]), "wrote no text"),
        (told("ab", {"index": 1}, [["a"]]), "wrote no text"),
        (told("ab", {"index": 1, "string": 2}, [["a"]]), "wrote no text"),
        (told("ab", "x", [["a"]]), "wrote no text"),
        (told("xb", None, [["a"]]), "took back"),
        (told("", None, [["a"]]), "took back"),
        (told("ab", {"index": 0, "string": "x"}, [["a"]]), "stop string where"),
        (told("ab", {"index": 2, "string": "x"}, [["a"]]), "stop string where"),
        (told("ab", {"index": -1, "string": "x"}, [["a"]]), "stop string where"),
        (told("ab"), "texts of the tokens"),
        (told("ab", None, [["a", "b"]]), "texts of the tokens"),
        (told("ab", None, [["a"], ["b"]]), "texts of the tokens"),
        (told("ab", None, [[1]]), "texts of the tokens"),
        (told("ab", None, [[None]]), "texts of the tokens"),
    ],
)
def test_what_is_no_answer_to_the_question_changes_nothing(said: Any, words: str) -> None:
    """The same question may then be put to another verifier."""
    text = text_of(stop="x")
    text.question([1], None, [])
    assert text.read(told("a")).text == "a"
    text.question([1, 2], None, [[5]])
    with pytest.raises(UpstreamError, match=words):
        text.read(said)
    assert text.read(told("ab", None, [["t"]])) == Piece("b", None, [["t"]])


def test_texts_that_nobody_asked_for_are_not_looked_at() -> None:
    """An older guard does not send them."""
    text = text_of()
    text.question([1], None, [])
    assert text.read({"text": "a", "stop": None}) == Piece("a", None, [])
