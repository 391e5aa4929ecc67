"""Verdicts, and where outputs fork."""

from array import array

import pytest

from app.determinism.divergence import (
    Bracket,
    Closeness,
    Comparison,
    Verdict,
    bracket,
    compare,
    first_difference,
)
from app.determinism.output import Blocks, Choice, Output, ToolCall


def output(*choices: Choice, complete: bool = True) -> Output:
    """A finished output of these choices."""
    return Output.of(choices, complete=complete)


def choice(text: str = "", index: int = 0, **rest: object) -> Choice:
    """A finished choice."""
    return Choice(index, text, finish_reason=str(rest.pop("finish_reason", "stop")), **rest)  # type: ignore[arg-type]  # members of any type, given by name


def test_equal_outputs_match() -> None:
    """Equal text is a match, whatever else one side carried."""
    with_ids = choice("same", token_ids=array("I", [1]), tokens=("same",))
    assert compare(output(choice("same")), output(with_ids)) == Comparison(Verdict.MATCH, shared=1.0)


def test_equal_text_of_other_tokens_is_a_match() -> None:
    """The verdict is about what a caller reads, so it is the same with and without token ids."""
    left, right = choice("ab", token_ids=array("I", [1])), choice("ab", token_ids=array("I", [2, 3]))
    assert compare(output(left), output(right)).verdict is Verdict.MATCH


@pytest.mark.parametrize(("left", "right"), [(True, False), (False, True), (False, False)])
def test_an_incomplete_output_is_incomparable(left: bool, right: bool) -> None:
    """One answer cut short is enough, even where the texts agree so far."""
    comparison = compare(output(choice("x"), complete=left), output(choice("x"), complete=right))
    assert comparison == Comparison(Verdict.INCOMPARABLE)


def test_the_fork_is_placed_by_exact_ids() -> None:
    """Ids beat token texts; the position counts the tokens that both share."""
    left = choice("a b c", token_ids=array("I", [1, 2, 3]), tokens=("a", " b", " c"))
    right = choice("a b d", token_ids=array("I", [1, 2, 4]), tokens=("x", " b", " d"))
    comparison = compare(output(left), output(right))
    assert (comparison.verdict, comparison.fork_tokens, comparison.fork_characters) == (Verdict.DIVERGED, 2, 4)
    assert comparison.shared == pytest.approx(0.8)


def test_the_fork_is_placed_by_token_texts_without_ids_on_both_sides() -> None:
    """Where one side has no ids, logprob tokens place the fork."""
    left = choice("a b", tokens=("a", " b"), token_ids=array("I", [1, 2]))
    assert compare(output(left), output(choice("a c", tokens=("a", " c")))).fork_tokens == 1


def test_the_fork_in_characters_alone() -> None:
    """Without tokens on either side only the characters are known, and tokens that do not spell the text are none."""
    comparison = compare(output(choice("abc")), output(choice("abd")))
    assert (comparison.fork_tokens, comparison.fork_characters) == (None, 2)
    misspelt = compare(output(choice("abc", tokens=("a", "\ufffd"))), output(choice("abd")))
    assert (misspelt.fork_tokens, misspelt.fork_characters) == (None, 2)


def test_one_side_that_knows_its_tokens_places_the_fork() -> None:
    """A shadow has tokens and its client's answer has none: it is the shadow's token in which they part."""
    shadow = choice("one two", tokens=("one", " two", "<end>"), margins=array("d", [3.0, 0.25, 9.0]))
    for left, right in ((choice("one ten"), shadow), (shadow, choice("one ten"))):
        comparison = compare(output(left), output(right))
        assert (comparison.fork_tokens, comparison.fork_characters, comparison.margin) == (1, 5, 0.25)
    assert compare(output(choice("one two more")), output(shadow)).fork_tokens == 2


def test_the_margin_is_the_larger_of_both_sides() -> None:
    """A tie is what both sides saw as one; where either was sure of its token, rounding is not the cause."""
    left = choice("ab", tokens=("a", "b"), margins=array("d", [2.0, 0.125]))
    right = choice("ac", tokens=("a", "c"), margins=array("d", [2.0, 7.0]))
    assert compare(output(left), output(right)).margin == 7.0
    unknown = choice("ab", tokens=("a", "b"), margins=array("d", [2.0, float("nan")]))
    assert compare(output(left), output(unknown._replace(text="ad", tokens=("a", "d")))).margin == 0.125
    alone = choice("ac", tokens=("a", "c"), margins=array("d", [2.0, float("nan")]))
    assert compare(output(unknown), output(alone)).margin is None


@pytest.mark.parametrize(
    ("margin", "closeness"),
    [(None, "unknown"), (0.0, "tie"), (0.25, "tie"), (0.2501, "near"), (1.0, "near"), (1.01, "clear")],
)
def test_a_margin_has_a_name(margin: float | None, closeness: str) -> None:
    """Up to two bfloat16 steps it is a tie."""
    assert Closeness.of(margin) == closeness


def test_logprobs_drift_before_tokens_do() -> None:
    """The largest difference over the tokens that both share: 0 only where they are equal to the last bit."""

    def said(text: str, *logprobs: float) -> Output:
        return output(choice(text, tokens=tuple(text), logprobs=array("d", logprobs)))

    assert compare(said("ab", -1.0, -2.0), said("ab", -1.0, -2.0)).logprob_delta == 0.0
    assert compare(said("ab", -1.0, -2.0), said("ab", -1.5, -2.25)).logprob_delta == 0.5
    assert compare(said("ab", -1.0, -9.0), said("ac", -1.125, -2.0)).logprob_delta == 0.125
    assert compare(said("b", -1.0), said("c", -1.0)).logprob_delta is None
    assert compare(said("ab", -1.0, -2.0), output(choice("ab"))).logprob_delta is None


@pytest.mark.parametrize(
    ("left", "right", "fork"),
    [
        (choice("ab"), choice("a"), 1),
        (choice("ab"), choice("ac"), 1),
        (choice("a", reasoning="x"), choice("b", reasoning="y"), 0),
        (choice("a", refusal="x"), choice("a"), 1),
        (choice(tool_calls=(ToolCall("f", "{}"),)), choice(tool_calls=(ToolCall("f", "[]"),)), 2),
        (choice("a"), choice("a", finish_reason="length"), 1),
    ],
)
def test_every_readable_difference_diverges(left: Choice, right: Choice, fork: int) -> None:
    """The fork lies in the text in the order of generation, or at its end, whichever side is the reference."""
    for comparison in (compare(output(left), output(right)), compare(output(right), output(left))):
        assert (comparison.verdict, comparison.fork_characters) == (Verdict.DIVERGED, fork)


def test_arguments_written_in_another_way_match() -> None:
    """A streamed and a unary tool call are one where their JSON is; the fork of others is counted in its plain form."""
    streamed, unary = (choice(tool_calls=(ToolCall("f", text),)) for text in ('{"a":1}', '{ "a": 1 }'))
    assert compare(output(streamed), output(unary)) == Comparison(Verdict.MATCH, shared=1.0)
    assert output(streamed).blocks == output(unary).blocks
    other = choice(tool_calls=(ToolCall("f", '{"a": 2}'),))
    assert compare(output(unary), output(other)).fork_characters == len('f\x1e{"a":')


def test_a_shorter_answer_forks_at_its_end() -> None:
    """Where one output is the start of the other, the fork is its length."""
    left, right = choice("ab", token_ids=array("I", [1, 2])), choice("a", token_ids=array("I", [1]))
    assert (compare(output(left), output(right)).fork_tokens, compare(output(left), output(right)).fork_characters) == (
        1,
        1,
    )


def test_of_several_choices_the_earliest_fork_counts() -> None:
    """Only choices that differ are looked at, and the earliest fork is reported."""
    left = output(
        choice("same", 0, token_ids=array("I", [1])),
        choice("aaab", 1, token_ids=array("I", [1, 1, 1, 2])),
        choice("ab", 2, token_ids=array("I", [1, 2])),
    )
    right = output(
        choice("same", 0, token_ids=array("I", [9])),
        choice("aaac", 1, token_ids=array("I", [1, 1, 1, 3])),
        choice("ac", 2, token_ids=array("I", [1, 3])),
    )
    comparison = compare(left, right)
    assert (comparison.fork_tokens, comparison.fork_characters) == (1, 1)
    assert comparison.shared == pytest.approx((1 + 0.75 + 0.5) / 3)


def test_one_unknown_token_fork_makes_the_earliest_unknown() -> None:
    """A choice without tokens might have forked first, so no token position is claimed."""
    left = output(choice("ab", 0, tokens=("a", "b")), choice("x", 1))
    right = output(choice("ac", 0, tokens=("a", "c")), choice("y", 1))
    assert compare(left, right).fork_tokens is None


def test_one_unknown_token_fork_makes_the_margin_unknown() -> None:
    """The margin is that of the earliest fork, never of a later one whose place happens to be known."""
    margins = array("d", [1.0, 0.125])
    left = output(choice("ab", 0, tokens=("a", "b"), margins=margins), choice("x", 1))
    right = output(choice("ac", 0, tokens=("a", "c"), margins=margins), choice("y", 1))
    assert compare(left, right).margin is None


def test_of_several_choices_the_margin_is_that_of_the_earliest_fork() -> None:
    """Where every fork is known to the token."""

    def said(first: str, second: str) -> Output:
        return output(
            choice(first, 0, tokens=tuple(first), margins=array("d", [1.0, 1.0, 7.0])),
            choice(second, 1, tokens=tuple(second), margins=array("d", [1.0, 0.125])),
        )

    comparison = compare(said("aab", "ab"), said("aac", "ac"))
    assert (comparison.fork_tokens, comparison.margin) == (1, 0.125)


def test_other_choices_diverge_without_a_fork() -> None:
    """Answers with other indices differ, and nothing says where."""
    comparison = compare(output(choice("a")), output(choice("a"), choice("b", 1)))
    assert comparison == Comparison(Verdict.DIVERGED)


def test_blocks_bracket_the_fork() -> None:
    """The first block that differs holds the fork, in units of its kind."""
    left = output(choice("x", token_ids=array("I", range(200))))
    ids = array("I", range(200))
    ids[130] = 9999
    right = output(choice("y", token_ids=ids))
    assert bracket(left.blocks, right.blocks) == Bracket("tokens", 128, 192)


def test_blocks_of_an_answer_that_ends_on_an_edge() -> None:
    """The fork is the end of the shorter one, the start of the bracket."""
    left, right = output(choice("a" * 256)), output(choice("a" * 300))
    assert bracket(left.blocks, right.blocks) == Bracket("characters", 256, 512)


def test_blocks_that_say_nothing() -> None:
    """Equal blocks, another unit or another number of choices give no bracket."""
    blocks = Blocks("tokens", (b"12345678",))
    assert bracket(blocks, blocks) is None
    assert bracket(blocks, Blocks("characters", (b"87654321",))) is None
    assert bracket(blocks, Blocks("tokens", (b"87654321", b""))) is None


def test_first_difference() -> None:
    """The shared length, for any kind of sequence."""
    assert first_difference("abc", "abd") == 2
    assert first_difference("", "abd") == 0
    assert first_difference("xbc", "abd") == 0
    assert first_difference([1, 2], [1, 2, 3]) == 2
