"""The edit similarity: of tokens where both sides have them, else of characters."""

from array import array

from app.determinism.output import Choice, Output
from app.determinism.similarity import LONGEST, edit_similarity


def output(*choices: Choice) -> Output:
    """A whole answer."""
    return Output.of(choices)


def choice(text: str, index: int = 0, ids: list[int] | None = None) -> Choice:
    """A finished choice."""
    return Choice(index, text, finish_reason="stop", token_ids=array("I", ids) if ids else None)


def test_one_of_four_characters_is_three_quarters() -> None:
    """One substitution in a text of four; equal texts are 1, and nothing in common is 0."""
    assert edit_similarity(output(choice("abcd")), output(choice("abxd"))) == 0.75
    assert edit_similarity(output(choice("same")), output(choice("same"))) == 1.0
    assert edit_similarity(output(choice("aaa")), output(choice("bbb"))) == 0.0
    assert edit_similarity(output(choice("")), output(choice(""))) == 1.0


def test_a_word_that_is_missing_in_the_middle_costs_that_word() -> None:
    """Which prefix agreement would take for the loss of everything behind it."""
    left, right = choice("one two three", ids=[1, 2, 3, 4]), choice("one three", ids=[1, 3, 4])
    assert edit_similarity(output(left), output(right)) == 0.75


def test_tokens_count_only_where_both_sides_have_them() -> None:
    """Otherwise the characters of both do."""
    left, right = choice("abcd", ids=[1, 2]), choice("abce")
    assert edit_similarity(output(left), output(right)) == 0.75


def test_choices_are_averaged_and_must_be_the_same() -> None:
    """Two choices of which one is equal; and different numbers of choices cannot be compared."""
    both = output(choice("same"), choice("abcd", 1)), output(choice("same"), choice("abxx", 1))
    assert edit_similarity(*both) == 0.75
    assert edit_similarity(output(choice("a")), output(choice("a"), choice("b", 1))) is None


def test_giants_are_compared_at_their_beginning() -> None:
    """What lies beyond the limit is not looked at, so that no answer holds the interpreter."""
    assert edit_similarity(output(choice("a" * LONGEST + "b")), output(choice("a" * LONGEST + "c" * 9))) == 1.0
