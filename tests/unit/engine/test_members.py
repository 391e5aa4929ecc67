"""Bodies from a gateway: what is absent, of another kind, or unknown is refused by its name."""

from collections.abc import Callable

import pytest

from app.engine.members import Members
from app.errors import InvalidRequest

READERS: dict[str, Callable[[Members], object]] = {
    "whole": lambda members: members.whole("x", 1, 9),
    "whole_or_null": lambda members: members.whole_or_null("x", 1, 9),
    "flag": lambda members: members.flag("x"),
    "text_or_null": lambda members: members.text_or_null("x", 3),
    "one_of": lambda members: members.one_of("x", ("a", "bc")),
    "members": lambda members: members.members("x"),
    "texts": lambda members: members.texts("x"),
    "tokens": lambda members: members.tokens("x", 10),
    "token_lists": lambda members: members.token_lists("x", 10),
}


@pytest.mark.parametrize(
    ("reader", "value", "expected"),
    [
        ("whole", "1", 1),
        ("whole", "9", 9),
        ("whole_or_null", "9", 9),
        ("whole_or_null", "null", None),
        ("flag", "true", True),
        ("text_or_null", '"abc"', "abc"),
        ("text_or_null", "null", None),
        ("one_of", '"bc"', "bc"),
        ("members", "{}", {}),
        ("members", '{"x": [1], "y": null}', {"x": [1], "y": None}),
        ("texts", '["a", "bc"]', ["a", "bc"]),
        ("texts", "[]", []),
        ("tokens", "[0, 9]", [0, 9]),
        ("token_lists", "[[0], [], [9, 1]]", [[0], [], [9, 1]]),
        ("token_lists", "[]", []),
    ],
)
def test_what_fits_is_read(reader: str, value: str, expected: object) -> None:
    """Each kind, at its edges."""
    members = Members(f'{{"x": {value}}}'.encode())
    assert READERS[reader](members) == expected
    members.end()


@pytest.mark.parametrize(
    ("reader", "value"),
    [
        *(("whole", value) for value in ("0", "10", "1.0", "true", "null", '"1"')),
        *(("whole_or_null", value) for value in ("0", "10", "false", "[]")),
        *(("flag", value) for value in ("0", "null", '"true"')),
        *(("text_or_null", value) for value in ('""', '"abcd"', "1")),
        *(("one_of", value) for value in ('"b"', '""', "[]", "null", '["a"]')),
        *(("members", value) for value in ("[]", "null", '"x"', "1")),
        *(("texts", value) for value in ('"a"', '[""]', "[1]", "null")),
        *(("tokens", value) for value in ("[10]", "[-1]", "[true]", "[1.0]", "1", "null", "[[1]]")),
        *(("token_lists", value) for value in ("[10]", "[[10]]", "[[true]]", "[[1], 1]", "null", '"x"')),
    ],
)
def test_what_does_not_fit_is_refused_by_name(reader: str, value: str) -> None:
    """Also what Python takes for a number."""
    with pytest.raises(InvalidRequest, match="'x' must be") as caught:
        READERS[reader](Members(f'{{"x": {value}}}'.encode()))
    assert caught.value.param == "x"


@pytest.mark.parametrize("reader", READERS)
def test_what_is_absent_is_refused_by_name(reader: str) -> None:
    """A gateway sends every member."""
    with pytest.raises(InvalidRequest, match="'x' is missing"):
        READERS[reader](Members(b"{}"))


def test_what_is_left_over_is_refused_by_name() -> None:
    """A member of a later version is not ignored: it could be what the answer depends on."""
    with pytest.raises(InvalidRequest, match="'y' is unknown") as caught:
        Members(b'{"y": 1}').end()
    assert caught.value.param == "y"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b"\xff", b"[" * 100_000])
def test_a_body_must_be_an_object(body: bytes) -> None:
    """Whatever else was sent."""
    with pytest.raises(InvalidRequest, match="JSON object"):
        Members(body)
