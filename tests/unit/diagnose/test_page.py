"""The whole page: that it holds what the report holds, lets nothing in, and needs nothing else."""

import json
import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.comparison.plain import visible
from app.determinism.mode import Mode
from app.determinism.statistics import rate_text
from app.diagnose.advice import Advice
from app.diagnose.findings import Suspect
from app.diagnose.investigation import Investigation
from app.diagnose.page import to_page
from app.diagnose.page_parts import curl
from app.diagnose.report import TITLES, Report, doubts, summary
from app.diagnose.rungs import Rung
from app.diagnose.sample import Sample, Setting
from app.probe.tally import Status
from tests.unit.diagnose.made import (
    CURES,
    DEPLOYMENT,
    OTHER,
    PROMPTS,
    TOKENS,
    URL,
    choice,
    cure,
    realistic,
    report,
    sample,
)
from tests.unit.diagnose.parsed import Node, parse, rows

LOADING = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "video", "audio", "a", "image", "use"}
REPORT = realistic()


def page_of(made: Report) -> Node:
    return parse(to_page(made))


def section(page: Node, title: str) -> str:
    """The text from a heading to the next of its rank."""
    text, here = "", False
    body = page.one("body")
    parts = [part for child in body.children for part in (child.children if child.tag == "section" else [child])]
    for part in parts:
        if part.tag == "h2":
            here = part.text == title
        elif here:
            text += part.text
    return text


def tables(page: Node) -> list[list[list[str]]]:
    return [rows(table) for table in page.every("table")]


def test_the_page_is_about_the_model_at_its_address() -> None:
    """In its title and its first heading, with what was asked."""
    page = page_of(REPORT)

    assert page.one("h1").text == page.one("head").one("title").text == f"{DEPLOYMENT.model} at {URL}"
    assert ["asked", f"{len(PROMPTS)} prompts, {TOKENS} tokens each"] in tables(page)[0]


def test_each_layer_has_its_sentence() -> None:
    """The four of the summary, in their order."""
    layers = page_of(REPORT).one("ul", "layers")
    assert [item.text for item in layers.every("li")] == list(summary(REPORT.verdict))


def test_the_advice_says_exactly_what_to_send() -> None:
    """Its sentences, the header, the body as JSON, and a line for a shell."""
    said = section(page_of(REPORT), "What to do")
    (name, value), *_ = REPORT.advice.header.items()

    assert all(sentence in said for sentence in REPORT.advice.sentences)
    assert f"{name}: {value}" in said
    assert json.dumps(dict(REPORT.advice.body)) in said
    assert curl(REPORT) in said


def test_without_something_to_send_there_is_no_line_to_paste() -> None:
    """Advice of words alone has no header, no body and no request."""
    said = section(page_of(replace(REPORT, advice=Advice(("Do nothing.",)))), "What to do")
    assert said.strip() == "Do nothing."


def test_every_finding_has_its_figures() -> None:
    """Layer, title, state, tokens and logprobs as k of n, the bound, the largest difference, and what was compared."""
    found = {row[1]: row for row in tables(page_of(REPORT))[1]}

    assert len(found) == 1 + len(REPORT.verdict.findings)
    for finding in REPORT.verdict.findings:
        row = found[TITLES[finding.suspect]]
        assert (row[0], row[2], row[7]) == (finding.layer.value, finding.state.value, finding.reason)
        assert rate_text(finding.tokens.k, finding.tokens.n) in row[3]
        if finding.delta is not None:
            assert row[4] == f"{finding.bits.k} of {finding.bits.n}"
            assert float(row[5].removesuffix(" nats")) == pytest.approx(finding.delta, rel=0.1)
    shape = REPORT.verdict.of(Suspect.BATCH_SHAPE)
    assert shape is not None
    assert shape.attribution is not None
    assert float(found[TITLES[Suspect.BATCH_SHAPE]][6].split()[-1]) == pytest.approx(shape.attribution.p, rel=0.1)


def test_every_rung_says_what_it_did_or_why_it_did_not() -> None:
    """Rounds, requests, answers and seconds; the reason of one that was left out, or cut short."""
    made = realistic()
    made.evidence.records[Rung.KV].reason = "the budget was spent"
    found = {row[0]: row for row in tables(page_of(made))[2]}

    assert set(found) == {"rung", *(rung.value for rung in Rung)}
    for rung, record in made.evidence.records.items():
        row = found[rung.value]
        assert row[2:5] == [str(record.rounds), str(record.requests), str(len(record.samples))]
        assert row[6] == (record.reason or "")
    assert found["sampler"][2:] == ["-", "-", "-", "-", made.evidence.missing[Rung.SAMPLER]]


def test_all_five_plots_are_drawn() -> None:
    """Each with a title, a sentence, a chart that says what it is, and its figures as a table."""
    figures = page_of(REPORT).every("figure")

    assert len(figures) == 5
    for plotted in figures:
        svg = plotted.one("svg")
        assert svg.attributes["aria-label"].startswith(plotted.one("h3").text)
        assert plotted.one("figcaption").text
        assert len(rows(plotted.one("table"))) > 1


def test_colours_follow_the_reader_and_every_class_of_a_mark_has_one() -> None:
    """Light or dark as the reader's system is, and no mark is left in a colour by chance."""
    page = page_of(REPORT)
    style = page.one("style").text
    used = {
        name
        for node in page.every()
        for name in node.attributes.get("class", "").split()
        if node.tag in {"rect", "path", "line"} and name != "mark"
    }

    assert "prefers-color-scheme:dark" in style
    assert used
    assert not {name for name in used if f".{name}{{" not in style and f".{name}," not in style}
    names = set(re.findall(r"var\((--\w+)\)", style))
    assert all(style.count(f"{name}:#") == 2 for name in names)


def test_the_examples_and_the_doubts_are_on_the_page() -> None:
    """Forks with their texts; what must be said beside the findings; how to read it all."""
    page = page_of(REPORT)

    assert 0 < len(page.one("section").every("details")) <= 10
    assert all(doubt in section(page, "Doubts") for doubt in doubts(REPORT))
    assert "95 %" in section(page, "How to read it")


def test_the_page_needs_nothing_else() -> None:
    """No script, link or image; its policy forbids all of them; an address is text, and the named servers' only."""
    text = to_page(REPORT)
    page = page_of(REPORT)
    policy = "default-src 'none'; style-src 'unsafe-inline'"

    assert not LOADING & {node.tag for node in page.every()}
    names = {name for node in page.every() for name in node.attributes}
    assert not {name for name in names if name.startswith("on") or name in {"src", "href", "action", "style"}}
    assert policy in {meta.attributes.get("content") for meta in page.every("meta")}
    assert not re.search(r"url\(|@import", text)
    assert {match.rstrip("/.") for match in re.findall(r"https?://[\w.:]+", text)} == {URL, OTHER}


HOSTILE = st.text(alphabet="<>&\"'/=! -scriptonload\n\x00\x1b\u202e\u2028\ud800{}%", min_size=1)


def hostile(text: str) -> Report:
    """A report in which everything that a stranger may have written is this text."""
    deployment = replace(
        DEPLOYMENT, model=text, prompts=(text, *PROMPTS[1:]), unsaid=(text,), posture=text, alone_proven=False
    )
    answers = [
        Sample(0, setting, choice(ids, [0.1, 0.1, 0.1], [-0.5, -0.5, -0.5], [f"a{text}", f"{ids[1]}{text}", text]))
        for setting, ids in ((Setting(), [0, 1, 2]), (Setting(), [0, 1, 2]), (Setting(size=2), [0, 3, 2]))
    ]
    made = report(
        {Rung.ALONE: answers[:2], Rung.BATCH: answers[2:]},
        deployment=deployment,
        investigation=Investigation(URL, replicas=(OTHER,)),
        cures=(*CURES, cure(Mode.HARDENED, 0, 0, 0.0, status=Status.FAILED, reason=text)),
        missing={Rung.KV: text, Rung.CACHE: text},
    )
    made.evidence.records[Rung.ALONE].reason = text
    made.evidence.records[Rung.ALONE].troubles.append(text)
    return replace(made, left_out={text: 1})


PLAIN = [(node.tag, sorted(node.attributes)) for node in page_of(hostile("plain")).every()]


@settings(deadline=None, max_examples=40)
@given(HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    """Whatever models and servers say, the page has the elements and attributes that it has with plain words."""
    page = page_of(hostile(text))

    assert [(node.tag, sorted(node.attributes)) for node in page.every()] == PLAIN
    assert visible(text) in page.one("h1").text


def test_control_characters_are_named() -> None:
    """What has no shape, or turns the direction of writing, is on the page by its name alone."""
    text = to_page(hostile("a\x1b[31m\u202ez"))

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "a[U+001B][31m[U+202E]z" in text


def shell_words(line: str) -> list[str]:
    assert "\n" not in line
    return shlex.split(line)


@given(HOSTILE.filter(lambda text: "\ud800" not in text))
def test_the_line_to_paste_is_one_request_whatever_the_model_is_called(text: str) -> None:
    """A shell reads one command with the header and a body of JSON, in which model and prompt are as they were."""
    made = hostile(text)
    words = shell_words(curl(made))
    body = json.loads(words[-1])

    assert words[:2] == ["curl", f"{URL}/v1/chat/completions"]
    assert words.count("-H") == 1 + len(made.advice.header)
    assert {f"{name}: {value}" for name, value in made.advice.header.items()} < set(words)
    assert (body["model"], body["messages"][0]["content"]) == (text, text)
    assert (body["max_tokens"], body["temperature"]) == (TOKENS, 0.0)


def test_the_key_is_not_on_the_page() -> None:
    """The line to paste takes it from the environment; a seed that was asked for is in the body."""
    made = replace(REPORT, investigation=Investigation(URL, api_key="hidden-key", seed=7))

    assert "hidden-key" not in to_page(made)
    assert "authorization: Bearer $OPENAI_API_KEY" in shell_words(curl(made))
    assert json.loads(shell_words(curl(made))[-1])["seed"] == 7


def test_no_evidence_gives_a_page_too() -> None:
    """It says that there is none, draws nothing, and has no heading over nothing."""
    page = page_of(report({}, deployment=replace(DEPLOYMENT, gateway=False, context=None, posture=None)))

    assert not page.every("svg")
    assert all(plotted.one("figcaption").text for plotted in page.every("figure"))
    assert "No answer differs" in page.one("section").text
    assert "Doubts" not in [heading.text for heading in page.every("h2")]


def test_sampled_answers_are_told_as_such() -> None:
    """The temperature, and that the sampler's seed was pinned all the same."""
    made = report({Rung.ALONE: [sample([1, 2])]}, investigation=Investigation(URL, temperature=0.7))
    assert ["temperature", "0.7, with a pinned seed"] in tables(page_of(made))[0]
