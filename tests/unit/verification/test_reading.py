"""Members by their type."""

import math
from collections.abc import Callable

import pytest

from app.errors import InvalidRequest
from app.verification.reading import flag, ids, integer, number, strings


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (lambda members: flag(members, "m"), True, True),
        (lambda members: flag(members, "m"), None, False),
        (lambda members: flag(members, "m", default=True), None, True),
        (lambda members: flag(members, "m", default=True), False, False),
        (lambda members: number(members, "m"), 1, 1),
        (lambda members: number(members, "m"), -0.5, -0.5),
        (lambda members: number(members, "m"), None, None),
        (lambda members: integer(members, "m", 0), 0, 0),
        (lambda members: integer(members, "m", 0), None, None),
        (lambda members: ids(members, "m", 10), [0, 9, 9], (0, 9, 9)),
        (lambda members: ids(members, "m", 10), None, ()),
        (lambda members: strings(members, "m", 2), "ab", ("ab",)),
        (lambda members: strings(members, "m", 2), ["a", "b"], ("a", "b")),
        (lambda members: strings(members, "m", 2), [], ()),
        (lambda members: strings(members, "m", 2), None, ()),
    ],
)
def test_what_a_member_may_be(read: Callable[[dict[str, object]], object], value: object, expected: object) -> None:
    """The value as it is, and null as if it were left out."""
    assert expected == read({"m": value})
    if value is None:
        assert expected == read({})


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (lambda members: flag(members, "m"), [0, 1, "true", [], {}]),
        (lambda members: number(members, "m"), ["1", True, [], math.inf, math.nan]),
        (lambda members: integer(members, "m", 1), [0, -1, 1.0, "1", True, []]),
        (lambda members: ids(members, "m", 10), [5, "5", [1.0], ["1"], [True], [-1], [10], [None], {}]),
        (lambda members: strings(members, "m", 2), ["", [""], ["a", ""], [1], 1, {}, ["a", "b", "c"], [None]]),
    ],
)
def test_what_a_member_may_not_be(read: Callable[[dict[str, object]], object], values: list[object]) -> None:
    """Another type, also one that vLLM would convert, is named and never read."""
    for value in values:
        with pytest.raises(InvalidRequest, match="'m'") as caught:
            read({"m": value})
        assert caught.value.param == "m"
