"""The page, against a golden file; `tests.unit.comparison.regenerate` writes that anew."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.comparison.entry import Entry, Side
from app.comparison.finding import find
from app.comparison.page import CHARACTERS, PAIRS, to_page
from app.determinism.output import Choice, Output
from tests.unit.comparison.made import answer, finding, line
from tests.unit.comparison.regenerate import FOLDER, page

LOADING = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "video", "audio", "svg", "a"}


class Tags(HTMLParser):
    """The tags of a page, its attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember it."""
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """It must be the last one open."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Remember what a reader sees."""
        if self.open and self.open[-1] != "style":
            self.text += data


def two(left: str, right: str) -> str:
    return to_page(finding([line("q", answer(left))], [line("q", answer(right))]))


def test_the_page_is_the_golden_one() -> None:
    """Figures, results, and both texts with the fork marked."""
    assert page() == (FOLDER / "page.html").read_text(encoding="utf-8")


def test_the_page_needs_nothing_else() -> None:
    """No script, link or image; its policy forbids all of them; and no address is in it."""
    tags = Tags(page())

    assert not LOADING & set(tags.tags)
    assert not {"src", "href", "onclick", "onload"} & {name for name, _ in tags.attributes}
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in tags.attributes
    assert not re.search(r"https?:|url\(|@import", page())
    assert "prefers-color-scheme:dark" in page()


@settings(deadline=None)
@given(st.text(alphabet="<>&\"'/=! -scriptonload\x00\x1b\u202e\ud800"), st.text(alphabet="<>&\"'/script"))
def test_hostile_answers_stay_text(left: str, right: str) -> None:
    """Whatever two answers hold, the page has the tags that it always has, all of them closed."""
    entries = [
        Entry("k", left, right or "q", digest, Output.of([Choice(0, text, finish_reason=right or "stop")]), mode=left)
        # A text has no half characters: no parser of answers lets them through. A name may.
        for digest, text in (("o-1", f"a{left}".encode(errors="replace").decode()), ("o-2", f"b{right}"))
    ]
    tags = Tags(to_page(find(Side(left, (entries[0],)), Side(right, (entries[1],)))))

    assert tags.open == []
    assert tags.tags == Tags(two("a", "b")).tags


def test_the_fork_is_marked_on_both_sides() -> None:
    """What is shared, then the mark; where one side is the other's beginning, its end is marked."""
    assert re.findall(r"class=same>(.*?)</span>.*?<mark>(.*?)</mark>", two("the same a", "the same b, and more")) == [
        ("the same ", "a"),
        ("the same ", "b,"),
    ]
    assert re.findall(r"<mark>(.*?)</mark>", two("short", "short and long")) == ["(ends)", " and"]


def test_a_difference_in_the_finish_reason_alone_marks_no_text() -> None:
    """Then the reasons are what differs, and both are shown."""
    found = to_page(finding([line("q", answer("same"))], [line("q", answer("same", finish_reason="length"))]))

    assert "<mark>" not in found
    assert re.findall(r"class=soft>(stop|length), 4 characters", found) == ["stop", "length"]


@pytest.mark.parametrize("position", [0, CHARACTERS, 3 * CHARACTERS - 1])
def test_long_texts_are_cut_around_the_fork(position: int) -> None:
    """The fork is on the page wherever it is, and what was left out is counted."""
    left = "x" * 3 * CHARACTERS
    right = left[:position] + "!" + left[position + 1 :]
    found = two(left, right)

    assert "<mark>!" in found
    assert len(found) < 6 * CHARACTERS
    assert re.search(r"… \d+ characters (before|after)", found)


def test_choices_are_shown_by_number() -> None:
    """Several choices are told apart, and one that a side lacks is said to be missing."""
    choices = [answer(text, index=number)["choices"][0] for number, text in enumerate(("a", "b"))]
    found = to_page(finding([line("q", answer("a") | {"choices": choices})], [line("q", answer("c"))]))

    assert "Choice 0" in found
    assert "Choice 1" in found
    assert "has no such choice" in found


def test_only_so_many_pairs_are_shown() -> None:
    """A page has an end; how many there are is said."""
    left = [line(str(n), answer("a")) for n in range(PAIRS + 1)]
    right = [line(str(n), answer("b")) for n in range(PAIRS + 1)]
    found = to_page(finding(left, right))

    assert found.count("<details") == PAIRS
    assert f"{PAIRS} of {PAIRS + 1}" in found


def test_digests_are_shown_where_there_is_no_text() -> None:
    """A run of the ledger without texts has its digests side by side."""
    sides = [Side(f"run:{name}", (Entry("k", "answer 1", "t", f"o-{name}", None),)) for name in "ab"]
    assert "Only digests are kept: o-a and o-b." in to_page(find(*sides))
