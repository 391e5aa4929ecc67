"""Prompts of known length, and what their neighbours hold."""

import pytest

from app.diagnose.material import LONG_PROMPTS, NEIGHBOUR_LENGTH, PARAGRAPH, Material
from tests.unit.diagnose.samples import material

WORDS = tuple(PARAGRAPH.split())


def test_a_long_prompt_has_its_length_and_ends_in_a_probe() -> None:
    """Each is of another content, and asks one of the probed questions at its end."""
    made = material()

    assert [len(prompt) for prompt in made.longs] == list(LONG_PROMPTS)
    assert len(set(made.longs)) == len(LONG_PROMPTS)
    for probe, prompt in zip(made.probes, made.longs, strict=True):
        assert prompt[-len(probe) :] == probe
    fronts = {prompt[:100] for prompt in made.longs}
    assert len(fronts) == len(LONG_PROMPTS)


def test_long_prompts_leave_one_token_after_whole_blocks() -> None:
    """So a prefix-cache hit computes one token alone, in the shape of a decode step: block sizes 16 to 128."""
    for length in LONG_PROMPTS:
        assert {length % block for block in (16, 32, 64, 128)} == {1}


def test_more_lengths_than_probes_go_round() -> None:
    """With one probe every long prompt ends in it; with two they take turns."""
    for probes in (1, 2):
        made = material(probes)
        ends = [prompt[-20:] for prompt in made.longs]
        assert ends == [made.probes[place % probes] for place in range(len(LONG_PROMPTS))]


def test_a_probe_is_never_cut_to_make_a_long_prompt() -> None:
    """A length that the probe alone fills makes none; the other lengths do."""
    assert [len(prompt) for prompt in material(length=129).longs] == [257, 641, 1025]
    assert material(length=1025).longs == ()


def test_a_position_names_a_probe_first_then_a_long_prompt() -> None:
    """One numbering over both."""
    made = material()

    assert [made.prompt(position) for position in range(8)] == [*made.probes, *made.longs]
    with pytest.raises(IndexError):
        made.prompt(8)


def test_filler_belongs_to_its_label() -> None:
    """Equal labels, equal tokens, in this run and in the next; another label, others; always of the length asked."""
    made, again = material(), material()

    assert made.filler(NEIGHBOUR_LENGTH, "a") == again.filler(NEIGHBOUR_LENGTH, "a")
    assert made.filler(NEIGHBOUR_LENGTH, "a") != made.filler(NEIGHBOUR_LENGTH, "b")
    for length in (1, NEIGHBOUR_LENGTH, 640):
        filler = made.filler(length, "a")
        assert len(filler) == length
        assert set(filler) <= set(made.vocabulary)


def test_without_token_ids_lengths_are_in_words() -> None:
    """Texts are joined with a space, and nothing is said to be exact."""
    made = Material.of(["Who are you now?", "What is it?"], WORDS, (10, 20))

    assert not made.exact
    assert material().exact
    assert [len(str(prompt).split()) for prompt in made.longs] == [10, 20]
    assert str(made.longs[0]).endswith(" Who are you now?")
    filler = made.filler(7, "a")
    assert isinstance(filler, str)
    assert len(filler.split()) == 7
    assert set(filler.split()) <= set(WORDS)
