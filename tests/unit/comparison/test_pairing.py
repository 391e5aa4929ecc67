"""Which answer belongs to which."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.comparison.entry import Entry, NotComparable, Side
from app.comparison.pairing import match, sides
from app.determinism.output import TEXT_PATH
from tests.unit.comparison.made import answer, line, read, request


def entry(key: str, place: object) -> Entry:
    return Entry(key, f"line {place}", "", None, None)


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_matching_loses_nothing(left: list[str], right: list[str]) -> None:
    """Every entry is in a pair or alone; repeats meet in their order, and with the only one all of them."""
    first, second = ([entry(key, number) for number, key in enumerate(keys)] for keys in (left, right))
    pairs, only_left, only_right = match(first, second)

    assert {one.place for one, _ in pairs} | {each.place for each in only_left} == {each.place for each in first}
    assert {one.place for _, one in pairs} | {each.place for each in only_right} == {each.place for each in second}
    assert len(only_left) + len({id(one) for one, _ in pairs}) == len(left)
    assert len(only_right) + len({id(other) for _, other in pairs}) == len(right)
    assert not {each.key for each in only_left} & {each.key for each in only_right}
    for key in "abc":
        met = [(one.place, other.place) for one, other in pairs if one.key == key]
        ones, others = ([each.place for each in side if each.key == key] for side in (first, second))
        if 1 in {len(ones), len(others)}:
            assert met == list(product(ones, others))
        else:
            assert met == list(zip(ones, others, strict=False))


def compared(*lines: dict[str, Any], any_model: bool = False) -> tuple[Side, Side]:
    first, second = lines
    return sides(("a", read(first)), ("b", read(second)), any_model=any_model)


def same(left: dict[str, Any], right: dict[str, Any], *, any_model: bool = False) -> bool:
    first, second = compared(left, right, any_model=any_model)
    return first.entries[0].key == second.entries[0].key


def test_what_cannot_change_an_answer_does_not_part() -> None:
    """Streams, evidence, the mode in member or suffix and the order of members leave a request the same one."""
    plain = line("q", None)
    other = {**line("q", None), "request": {"stream": True, "logprobs": True, "determinism": "isolated", "user": "x"}}
    other["request"] |= dict(reversed(request("q").items())) | {"model": "m@isolated", "temperature": 0.0}

    assert same(plain, other)


@pytest.mark.parametrize("change", [{"temperature": 0.5}, {"seed": 1}, {"n": 2}, {"model": "other"}, {"model": "m@x"}])
def test_what_can_change_an_answer_parts(change: dict[str, Any]) -> None:
    """A member that the engine acts on makes another request."""
    assert not same(line("q", None), {**line("q", None), "request": request("q", **change)})


def test_models_can_be_left_out() -> None:
    """With any model the same question to two models is one request; to another path it is not."""
    other = {**line("q", None), "request": request("q", model="other")}

    assert same(line("q", None), other, any_model=True)
    assert not same(line("q", None), {**other, "path": TEXT_PATH}, any_model=True)


def test_results_of_a_batch_are_matched_by_their_ids() -> None:
    """Results hold no request, so the ids speak, on both sides."""
    result = {"custom_id": "1", "response": {"status_code": 200, "body": answer("a")}}
    left, right = compared(result, line("q", answer("a"), custom_id="1"))

    assert [left.entries[0].key, right.entries[0].key] == ["1", "1"]
    assert left.entries[0].title == "1"


def test_a_line_without_an_id_among_results_is_named() -> None:
    """Nothing says what it belongs to."""
    result = {"custom_id": "1", "response": {"status_code": 200, "body": answer("a")}}
    with pytest.raises(NotComparable, match="b:1: there is no 'custom_id'"):
        compared(result, line("q", answer("a")))


@pytest.mark.parametrize(
    ("members", "title"),
    [
        ({"messages": [{"content": "first"}, {"content": "the\nlast"}]}, "the last"),
        ({"messages": [{"content": [{"type": "text", "text": "part"}]}]}, "part"),
        ({"prompt": ["one", "two"]}, "one"),
        ({"prompt": [[5, 6]]}, "5"),
        ({"messages": "no list"}, ""),
        ({"messages": [{"content": []}]}, "[]"),
        ({"messages": [3]}, ""),
    ],
)
def test_a_title_is_what_was_asked(members: dict[str, Any], title: str) -> None:
    """The last message or the first prompt, in one line; whatever is there, it is a text."""
    left, _ = compared({"path": TEXT_PATH, "request": members}, line("q", None))
    assert left.entries[0].title == title
