"""Parsing a body, and edits that leave the rest alone."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.determinism.request import edit, parse
from app.errors import InvalidRequest

CHAT = "/v1/chat/completions"
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":"\xff"}', "not valid JSON"),
        (b'\xef\xbb\xbf{"a":1}', "not valid JSON"),
        ('{"a":1}'.encode("utf-16"), "not valid JSON"),
        (b"[1]", "must be a JSON object, not an array"),
        (b"null", "must be a JSON object, not null"),
        (b'"x"', "must be a JSON object, not a string"),
        (b"3", "must be a JSON object, not a number"),
        (b"true", "must be a JSON object, not a boolean"),
        (b'{"model":3}', "'model' must be a string, not a number"),
        (b'{"stream":"yes"}', "'stream' must be true or false, not a string"),
        (b"[" * 5000, "not valid JSON"),
    ],
)
def test_a_bad_body_is_refused_by_name(body: bytes, words: str) -> None:
    """The error says what is wrong and where."""
    with pytest.raises(InvalidRequest, match=words):
        parse(CHAT, body)


def test_an_edit_keeps_every_other_byte() -> None:
    """Numbers beyond a double, escapes, white space and unknown members survive."""
    body = (
        b'{ "seed":9223372036854775807,\n "t":0.12345678901, "z":-0.0, "tiny":1e-320,'
        b' "determinism" : {"mode":"x, }\\""},  "m" :[1,{"k":"\\ud83d\\ude00"}] , "temperature": 0 }'
    )

    edited = edit(body, {"determinism": None, "temperature": 1e-5, "cache_salt": "s"})

    assert edited == (
        b'{ "seed":9223372036854775807,\n "t":0.12345678901, "z":-0.0, "tiny":1e-320,'
        b'  "m" :[1,{"k":"\\ud83d\\ude00"}] , "temperature":1e-05,"cache_salt":"s" }'
    )


@pytest.mark.parametrize(
    ("body", "changes", "expected"),
    [
        (b"{}", {"a": 1}, b'{"a":1}'),
        (b" { } ", {"a": 1}, b' { "a":1} '),
        (b' { "a":1 } ', {"a": None}, b" {  } "),
        (b' { "a":1, "b":2 } ', {"a": None}, b' { "b":2 } '),
        (b' { "a":1, "b":2 } ', {"b": None}, b' { "a":1 } '),
        (b'{"\\u0061":1}', {"a": None}, b"{}"),
        (b'{"a":1}', {"b": None}, b'{"a":1}'),
    ],
)
def test_edges_of_an_edit(body: bytes, changes: dict[str, Any], expected: bytes) -> None:
    """Empty objects, first and last members, escaped names, and members that are not there."""
    assert expected == edit(body, changes)


def test_nothing_to_change_is_the_same_object() -> None:
    """The hot path forwards the caller's own bytes."""
    body = b'{"a":1}'
    assert edit(body, {}) is body


def test_a_changed_member_must_not_be_there_twice() -> None:
    """Engine and gateway could disagree about which of two counts."""
    with pytest.raises(InvalidRequest, match="'seed' is given more than once"):
        edit(b'{"seed":1,"seed":2}', {"seed": 3})


def test_a_deep_body_is_an_error_and_no_crash() -> None:
    """Nesting that the JSON reader takes but the editor cannot walk is a 400."""
    for depth, refused in ((100, False), (300, True), (900, True), (1000, True)):
        body = b'{"a":' + b"[" * depth + b"]" * depth + b',"seed":1}'
        if refused:
            with pytest.raises(InvalidRequest, match="nested too deeply"):
                parse(CHAT, body)
        else:
            assert orjson.loads(edit(parse(CHAT, body).body, {"seed": 2}))["seed"] == 2
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        edit(b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}", {"seed": 2})


@given(
    members=st.dictionaries(st.text(max_size=6), JSON, max_size=6),
    changes=st.dictionaries(st.text(max_size=6), st.none() | st.integers() | st.text(max_size=4), max_size=4),
    spread=st.booleans(),
    ascii_only=st.booleans(),
)
def test_an_edit_means_what_it_says(
    members: dict[str, Any], changes: dict[str, Any], spread: bool, ascii_only: bool
) -> None:
    """For any object and any changes the result parses to the object with the changes, in the old order."""
    body = json.dumps(members, ensure_ascii=ascii_only, indent=1 if spread else None).encode("utf-8", "surrogatepass")
    expected = {name: changes.get(name, value) for name, value in members.items()} | changes
    dropped = {name for name, value in changes.items() if value is None}

    edited = json.loads(edit(body, changes))

    wanted = {name: value for name, value in expected.items() if name not in dropped}
    assert list(wanted.items()) == list(edited.items())
