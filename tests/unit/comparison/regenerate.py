"""Writes the golden files anew, from the repository's root: ``python -m tests.unit.comparison.regenerate``."""

import json
from pathlib import Path

from app.comparison.document import to_document
from app.comparison.page import to_page
from tests.unit.comparison.made import example

FOLDER = Path(__file__).with_name("golden")


def document() -> str:
    """The JSON document of the example."""
    return json.dumps(to_document(example(), exit_code=1), indent=2) + "\n"


def page() -> str:
    """The page of the example."""
    return to_page(example())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "document.json").write_text(document())
    (FOLDER / "page.html").write_text(page(), encoding="utf-8")
