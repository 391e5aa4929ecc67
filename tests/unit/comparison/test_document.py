"""The JSON document, against a golden file; `tests.unit.comparison.regenerate` writes that anew."""

import json

from app.comparison.document import to_document
from tests.unit.comparison.made import answer, finding, line
from tests.unit.comparison.regenerate import FOLDER, document


def test_the_document_is_the_golden_one() -> None:
    """Every figure, every pair that differs, and no text of an answer."""
    assert document() == (FOLDER / "document.json").read_text()


def test_unknown_figures_are_null() -> None:
    """Where nothing was compared there is no rate and no bound, and the document is JSON all the same."""
    found = to_document(finding([line("q", None)], [line("r", None)]), exit_code=2)

    assert found["diverged"] == {"k": 0, "n": 0, "below": None, "confidence": 0.95, "text": "0 of 0, nothing measured"}
    assert (found["edit_similarity"], found["fork_tokens"], found["results"]) == (None, None, None)
    assert json.loads(json.dumps(found)) == found


def test_results_are_in_the_document() -> None:
    """What was extracted on each side, null where nothing was."""
    results = [pair["results"] for pair in json.loads(document())["differences"]]
    assert results == [{"a": ["yes"], "b": ["no"], "flipped": True}, {"a": None, "b": None, "flipped": False}]


def test_differences_carry_no_texts() -> None:
    """What was asked and answered stays in the files that were compared."""
    found = to_document(
        finding([line("secret question", answer("secret one"))], [line("secret question", answer("secret two"))]),
        exit_code=0,
    )
    assert len(found["differences"]) == 1
    assert "secret" not in json.dumps(found)
