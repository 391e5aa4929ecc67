"""What a comparison finds: verdicts, forks, margins, likeness, flips, and what has no verdict."""

from collections.abc import Sequence

import pytest

from app.comparison.entry import Entry, Side
from app.comparison.extraction import by_regex
from app.comparison.finding import Spread, find
from app.determinism.divergence import Closeness
from app.determinism.output import Choice, Output
from tests.unit.comparison.made import answer, example, finding, line


class Counting:
    """An embedder that looks at the lengths of texts alone."""

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Its vectors have two places."""
        return [[1.0, float(len(text))] for text in texts]


def kept(key: str, digest: str, text: str | None, place: str = "answer 1") -> Entry:
    output = None if text is None else Output.of([Choice(0, text, finish_reason="kept")])
    return Entry(key, place, "t", digest, output)


def test_one_of_everything() -> None:
    """The example has a match, two divergences, one flip, one failure, and one without counterpart on each side."""
    found = example()

    assert (len(found.pairs), len(found.compared), len(found.diverged)) == (4, 3, 2)
    assert [pair.left.place for pair in found.diverged] == ["line 2", "line 3"]
    assert [entry.place for entry in found.only_left + found.only_right] == ["line 5", "line 1"]
    assert (found.scored, found.flipped, found.unparsable) == (1, 1, (2, 2))
    assert found.incomparable == {"A: HTTP 503: full": 1}
    assert found.closeness[Closeness.TIE] == found.closeness[Closeness.UNKNOWN] == 1
    assert found.diverged[0].comparison.fork_tokens == 2
    assert found.diverged[0].comparison.margin == pytest.approx(0.1)
    assert found.fork_characters == Spread(29.5, 14)
    assert not found.equal


def test_equal_runs_are_equal() -> None:
    """Then nothing differs, and nothing is said of forks."""
    lines = [line("q", answer("a")), line("q", answer("b"))]
    found = finding(lines, lines)

    assert found.equal
    assert (len(found.diverged), found.requests, found.similarity, found.fork_tokens) == (0, 1, None, None)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([("q", "a")], [("q", "b")]),
        ([("q", "a"), ("r", "a")], [("q", "a")]),
        ([("q", "a")], [("q", "a"), ("r", "a")]),
        ([("q", "a")], [("q", None)]),
        ([("q", "a")], [("r", "a")]),
    ],
)
def test_anything_amiss_is_not_equal(left: list[tuple[str, str]], right: list[tuple[str, str | None]]) -> None:
    """A difference, a missing counterpart on either side, a missing answer, and nothing matched at all."""
    first, second = (
        [line(asked, None if said is None else answer(said)) for asked, said in side] for side in (left, right)
    )
    assert not finding(first, second).equal


def test_flips_come_first_then_the_least_alike() -> None:
    """The order of the worst: a flipped result outweighs any likeness."""
    left = [line(name, answer(text)) for name, text in (("a", "x 1 " + "y" * 50), ("b", "1 one"), ("c", "1 long text"))]
    right = [
        line(name, answer(text)) for name, text in (("a", "x 2 " + "y" * 50), ("b", "1 two"), ("c", "1 long test"))
    ]
    found = finding(left, right, extraction=by_regex(r"\d"), rule="d")

    assert [pair.left.title for pair in found.diverged] == ["a", "b", "c"]
    assert [pair.flipped for pair in found.diverged] == [True, False, False]


def test_unparsable_on_one_side_is_no_flip() -> None:
    """It is counted for its side, and the pair has no part in the rate."""
    found = finding([line("q", answer("7"))], [line("q", answer("seven"))], extraction=by_regex(r"\d"), rule="d")

    assert (found.scored, found.flipped, found.unparsable) == (0, 0, (0, 1))


def test_meaning_is_advice_on_divergences_alone() -> None:
    """A pair that is near in meaning stays diverged; a match is not asked about."""
    found = finding(
        [line("q", answer("abc")), line("r", answer("s"))],
        [line("q", answer("xyz")), line("r", answer("s"))],
        embedder=Counting(),
    )

    assert [pair.semantic for pair in found.pairs] == [pytest.approx(1.0), None]
    assert len(found.diverged) == 1


def test_digests_alone_give_a_verdict_and_nothing_else() -> None:
    """Without texts two answers agree or differ, and no result can be looked for."""
    left = Side("run:a", (kept("k", "o-1", None), kept("l", "o-1", None)), only_texts=True)
    right = Side("run:b", (kept("k", "o-1", "text"), kept("l", "o-2", None)), only_texts=True)
    found = find(left, right, extraction=by_regex("."), rule=".")

    assert [pair.diverged for pair in found.pairs] == [False, True]
    assert (found.scored, found.unparsable, found.similarity, found.fork_characters) == (0, (0, 0), None, None)


def test_the_digests_judge_where_texts_are_kept() -> None:
    """Equal texts of different answers, cut or redacted alike, are a divergence; different ones of one answer, none."""
    left = Side("run:a", (kept("k", "o-1", "[redacted]"), kept("l", "o-3", "x")), only_texts=True)
    right = Side("run:b", (kept("k", "o-2", "[redacted]"), kept("l", "o-3", "y")), only_texts=True)
    found = find(left, right)

    assert [pair.diverged for pair in found.pairs] == [True, False]
    assert found.diverged[0].comparison.fork_characters is None


def test_both_reasons_are_told() -> None:
    """A pair without an answer on either side says why, for each."""
    found = finding([line("q", None)], [line("q", answer("x", finish_reason=None))])
    assert found.incomparable == {"A: no answer; B: the answer was cut short": 1}
