"""When an answer ends: vLLM's rules, in its order."""

from dataclasses import replace

import pytest

from app.verification.ending import End, Ending

ENDING = Ending(
    prompt=90,
    length=100,
    max_tokens=5,
    min_tokens=2,
    eos=2,
    model_stops=frozenset({3, 4}),
    stops=frozenset({4, 7}),
)


@pytest.mark.parametrize(
    ("token", "count", "ignore_eos", "expected"),
    [
        (9, 1, False, None),
        (2, 1, False, End("stop")),
        (3, 1, False, End("stop", 3)),
        (4, 1, False, End("stop", 4)),
        (7, 1, False, End("stop", 7)),
        (9, 4, False, None),
        (9, 5, False, End("length")),
        (2, 5, False, End("stop")),
        (7, 5, False, End("stop", 7)),
        (2, 1, True, None),
        (3, 1, True, None),
        (4, 1, True, End("stop", 4)),
        (7, 1, True, End("stop", 7)),
        (2, 5, True, End("length")),
    ],
)
def test_the_first_rule_that_holds_ends_it(token: int, count: int, ignore_eos: bool, expected: End | None) -> None:
    """End token, stop ids, length; ``ignore_eos`` is about the model's tokens and never about the caller's."""
    assert expected == replace(ENDING, ignore_eos=ignore_eos).after(token, count)


def test_the_callers_end_token_is_a_stop_id_where_the_models_is_ignored() -> None:
    """An end token that the caller names as a stop id ends the answer by the rule that comes first."""
    named = replace(ENDING, stops=frozenset({2}))
    assert named.after(2, 1) == End("stop")
    assert replace(named, ignore_eos=True).after(2, 1) == End("stop", 2)


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_no_end_is_chosen_before_the_least_number_of_tokens(ignore_eos: bool) -> None:
    """All end tokens are masked while there are fewer, also those that are ignored."""
    ending = replace(ENDING, ignore_eos=ignore_eos)
    assert ending.masked(0) == ending.masked(1) == {2, 3, 4, 7}
    assert ending.masked(2) == frozenset()


def test_a_model_without_an_end_token_masks_the_others() -> None:
    """What is not there cannot be masked."""
    assert replace(ENDING, eos=None).masked(0) == {3, 4, 7}


@pytest.mark.parametrize(("max_tokens", "most"), [(5, 5), (10, 10), (11, 10), (10**9, 10)])
def test_the_models_length_ends_an_answer_too(max_tokens: int, most: int) -> None:
    """The last token fills the model's length."""
    ending = replace(ENDING, max_tokens=max_tokens)
    assert ending.most == most
    assert ending.after(9, most - 1) is None
    assert ending.after(9, most) == End("length")


@pytest.mark.parametrize(("prompt", "max_tokens"), [(100, 5), (90, 0)])
def test_an_answer_of_no_tokens_is_none(prompt: int, max_tokens: int) -> None:
    """A prompt that fills the model, and a limit below one, are refused before anything is asked."""
    with pytest.raises(ValueError, match="one token at least"):
        replace(ENDING, prompt=prompt, max_tokens=max_tokens)
