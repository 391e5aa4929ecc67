"""Markup as text: elements whose attributes and texts cannot become other markup, whoever wrote them. Pure."""

from collections.abc import Iterable
from html import escape

from app.comparison.plain import one_line, visible


def safe(text: str) -> str:
    """A text of a model, a server or a person as markup: what has no shape is named, the rest escaped."""
    return escape(visible(text))


def shortened(text: str, most: int) -> str:
    """The beginning of a text, of at most ``most`` characters and in one line; not yet `safe`."""
    return one_line(" ".join(text.split()), most)


def element(tag: str, *inner: str, **attributes: str | float | None) -> str:
    """An element around markup. An attribute of None is left out; ``class_`` is ``class``, ``text_anchor`` has a dash.

    Numbers are written with two decimals at most.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{safe(value if isinstance(value, str) else figure(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{written}>{''.join(inner)}</{tag}>"


def figure(value: float) -> str:
    """A number with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of texts, the first of each row its head, in a box that scrolls where the page is too narrow."""
    names = [element("th", safe(name), scope="col") for name in header]
    head = element("tr", *names) if names else ""
    body = (_row(*cells) for cells in rows)
    return element("div", element("table", head, *body), class_="wide", tabindex="0") + "\n"


def _row(name: str, *cells: str) -> str:
    return element(
        "tr", element("th", _isolated(name), scope="row"), *(element("td", _isolated(cell)) for cell in cells)
    )


def _isolated(text: str) -> str:
    """Words that run from right to left turn nothing around them."""
    return element("bdi", safe(text))
