"""Nearness in meaning: the cosine, what is not known, and the bundled model."""

import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.determinism.output import Choice, Output
from app.determinism.semantic import LONGEST, Embedder, SemanticUnavailable, load_embedder, semantic_similarity


class Fixed:
    """An embedder with a vector for each text; it remembers what it was given."""

    def __init__(self, **vectors: list[float]) -> None:
        self.vectors = vectors
        self.given: list[str] = []

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """The vectors, by the texts' first letters."""
        self.given += texts
        return [self.vectors[text[0]] for text in texts]


def output(*texts: str) -> Output:
    return Output.of(Choice(index, text, finish_reason="stop") for index, text in enumerate(texts))


@pytest.fixture(scope="module")
def bundled() -> Embedder:
    return load_embedder()


def test_the_cosine_is_averaged_over_the_choices() -> None:
    """One choice points the same way, one the other way, and length does not matter."""
    embedder = Fixed(a=[1.0, 0.0], b=[5.0, 0.0], c=[0.0, -1.0], d=[0.0, 2.0])

    assert semantic_similarity(output("a"), output("b"), embedder) == 1.0
    assert semantic_similarity(output("c"), output("d"), embedder) == -1.0
    assert semantic_similarity(output("a", "c"), output("b", "d"), embedder) == 0.0


def test_what_cannot_be_compared_is_unknown() -> None:
    """Different choices, none at all, or a text without a word."""
    embedder = Fixed(a=[1.0, 0.0], z=[0.0, 0.0])

    assert semantic_similarity(output("a"), output("a", "a"), embedder) is None
    assert semantic_similarity(output(), output(), embedder) is None
    assert semantic_similarity(output("a", "a"), output("a", "z"), embedder) is None


def test_long_texts_are_cut() -> None:
    """The embedder sees a bounded part of each side."""
    embedder = Fixed(a=[1.0], b=[1.0])
    semantic_similarity(output("a" * (LONGEST + 5)), output("b"), embedder)

    assert [len(text) for text in embedder.given] == [LONGEST, 1]


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3))
def test_a_cosine_is_a_cosine(left: list[float], right: list[float]) -> None:
    """It lies between -1 and 1 whatever the vectors, or is unknown where one of them is zero."""
    found = semantic_similarity(output("a"), output("b"), Fixed(a=left, b=right))
    assert found is None or -1.0 <= found <= 1.0


def test_the_bundled_model_tells_paraphrase_from_something_else(bundled: Embedder) -> None:
    """It loads from its package, without the network, and puts a paraphrase above a sentence on something else."""
    said = output("The cat sat on the mat.")
    near = semantic_similarity(said, output("A cat was sitting on a mat."), bundled)
    far = semantic_similarity(said, output("Quarterly revenue fell by nine percent."), bundled)

    assert near is not None
    assert far is not None
    assert near > 0.7
    assert far < 0.3


def test_the_bundled_model_takes_any_text(bundled: Embedder) -> None:
    """Half a character is no crash, and an empty text has no meaning."""
    (half,) = bundled.embed(["\ud800 half"])

    assert len(half) == 256
    assert semantic_similarity(output("words"), output(""), bundled) is None


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks without the extra is told what to install."""
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(SemanticUnavailable, match=r"reprise-gateway\[semantic\]"):
        load_embedder()


def test_a_package_without_its_model_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is an installed package whose model cannot be loaded."""

    class Empty:
        __file__ = "nowhere/__init__.py"

    monkeypatch.setitem(sys.modules, "wordllama", Empty())
    with pytest.raises(SemanticUnavailable, match="cannot be loaded"):
        load_embedder()
