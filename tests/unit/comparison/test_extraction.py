"""The result within an answer, found by the user's rule."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.comparison.extraction import by_path, by_regex, extract
from app.determinism.output import Choice, Output, ToolCall


@pytest.mark.parametrize(
    ("pattern", "text", "result"),
    [
        (r"#### (\d+)", "so\n#### 42\n#### 43", "42"),
        (r"\d+", "6 times 7", "6"),
        (r"is (a)?", "it is b", None),
        (r"(x)(y)", "xy", "x"),
        (r"z", "none", None),
    ],
)
def test_a_regular_expression(pattern: str, text: str, result: str | None) -> None:
    """The first group of the first match, the whole of it without a group, and nothing where there is none."""
    assert by_regex(pattern)(text) == result


@pytest.mark.parametrize(
    ("path", "text", "result"),
    [
        ("label", '{"label": "yes"}', '"yes"'),
        ("$.a.b", '{"a": {"b": 1}}', "1"),
        ("a[1].b", '{"a": [0, {"b": true}]}', "true"),
        ("a[-1]", '{"a": [1, 2]}', "2"),
        ("[0][1]", "[[1, 2]]", "2"),
        ("$[0]", "[7]", "7"),
        ("a b.c-d", '{"a b": {"c-d": 1}}', "1"),
        ("a", '{"a": {"y": 1, "x": [ 2 ]}}', '{"x":[2],"y":1}'),
        ("a", 'Sure:\n```json\n{"a": 5}\n```\n', "5"),
        ("a", '{"b": 1}', None),
        ("a", '{"a": null}', None),
        ("a", '["a"]', None),
        ("a.b", '{"a": "b"}', None),
        ("[0]", '{"0": 1}', None),
        ("[3]", "[1]", None),
        ("a", "no json", None),
        ("a", "", None),
    ],
)
def test_a_path(path: str, text: str, result: str | None) -> None:
    """Names and positions lead to a member, in plain form; what leads nowhere is no result."""
    assert by_path(path)(text) == result


@pytest.mark.parametrize("path", ["", "$", ".", "a..b", "a[", "a[x]", "a]b", "a[0]b", "[1.5]", "a."])
def test_what_is_no_path_is_refused(path: str) -> None:
    """The error says what a path is, or that it names nothing."""
    with pytest.raises(ValueError, match=r"is not a path|names no member"):
        by_path(path)


def test_what_is_no_regular_expression_is_refused() -> None:
    """The error quotes it."""
    with pytest.raises(ValueError, match=r"'\(' is not a regular expression"):
        by_regex("(")


@settings(deadline=None)
@given(st.text(), st.text(alphabet="ab.[]01$-", max_size=8))
def test_no_text_crashes_a_path(text: str, path: str) -> None:
    """Any path is refused when it is read, or gives a result or none on any text."""
    try:
        rule = by_path(path)
    except ValueError:
        return
    assert isinstance(rule(text), str | None)


@pytest.mark.parametrize("text", ["[" * 5000, "[" * 500 + "]" * 500, '{"a": "\\ud800"}', '{"a": ' + "9" * 5000 + "}"])
def test_hostile_json_has_no_result(text: str) -> None:
    """Nesting and numbers beyond reason, or half a character, are no results and no crash."""
    assert by_path("b")(text) is None


def test_every_choice_counts() -> None:
    """One result per choice; one that has none leaves the whole answer without."""
    both = [Choice(0, "a1", finish_reason="stop"), Choice(1, "a2", finish_reason="stop")]

    assert extract(Output.of(both), by_regex(r"\d")) == ("1", "2")
    assert extract(Output.of(both), by_regex("1")) is None


def test_a_tool_call_is_scored_where_there_is_no_text() -> None:
    """Its arguments are looked at; the reasoning never is."""
    call = Choice(0, reasoning='{"a": 1}', tool_calls=(ToolCall("f", '{"a": 2}'),), finish_reason="tool_calls")
    thought = Choice(0, "", reasoning="42", finish_reason="stop")

    assert extract(Output.of([call]), by_path("a")) == ("2",)
    assert extract(Output.of([thought]), by_regex(r"\d+")) is None
