"""Markup as a tree, for tests that look at what a page holds, and places on a chart by its own axes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

_VOID: Final = {"meta", "br"}


@dataclass(slots=True)
class Node:
    """An element; ``content`` holds its texts and elements in order."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    content: "list[str | Node]" = field(default_factory=list)

    @property
    def text(self) -> str:
        """Everything that is written in it."""
        return "".join(part if isinstance(part, str) else part.text for part in self.content)

    @property
    def children(self) -> "list[Node]":
        """The elements directly in it."""
        return [part for part in self.content if isinstance(part, Node)]

    def every(self, tag: str | None = None, style: str | None = None) -> "list[Node]":
        """All elements below it, of a tag and with a class where these are given."""
        return [
            node
            for node in self._below()
            if tag in {None, node.tag} and (style is None or style in node.attributes.get("class", "").split())
        ]

    def one(self, tag: str | None = None, style: str | None = None) -> "Node":
        """The only such element."""
        (node,) = self.every(tag, style)
        return node

    def number(self, name: str) -> float:
        """An attribute that is a number."""
        return float(self.attributes[name])

    def _below(self) -> "Iterator[Node]":
        for child in self.children:
            yield child
            yield from child._below()


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Node("root")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].content.append(node)
        if tag not in _VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)


def parse(markup: str) -> Node:
    """The tree of some markup, in which every element must be closed."""
    builder = _Builder()
    builder.feed(markup)
    builder.close()
    assert builder.open == [builder.root]
    return builder.root


def rows(table: Node) -> list[list[str]]:
    """The texts of a table, row by row."""
    return [[cell.text for cell in row.children] for row in table.every("tr")]


def axis(svg: Node, style: str) -> Callable[[float], float]:
    """From values to places, by the ticks that are written on an axis: ``across`` or ``upright``."""
    drawn = svg.one("g", style)
    # The line of the axis itself is no tick: it goes along it.
    ticks = [line for line in drawn.every("line") if style == "upright" or line.number("x1") == line.number("x2")]
    places = [line.number("x1" if style == "across" else "y1") for line in ticks]
    labels = [float(label.text.removesuffix(" %")) for label in drawn.every("text", "tick")]
    assert len(labels) == len(places) > 1
    unit = (places[-1] - places[0]) / (labels[-1] - labels[0])
    return lambda value: places[0] + (value - labels[0]) * unit


def inside(svg: Node) -> bool:
    """Whether every mark, line and text of a drawing begins within it."""
    width, height = map(float, svg.attributes["viewbox"].split()[2:])
    across = [node.number(name) for node in svg.every() for name in ("x", "x1", "x2") if name in node.attributes]
    upright = [node.number(name) for node in svg.every() for name in ("y", "y1", "y2") if name in node.attributes]
    ends = [
        (node.number("x") + node.number("width"), node.number("y") + node.number("height"))
        for node in svg.every("rect")
    ]
    return all(-0.01 <= x <= width + 0.01 for x in (*across, *(x for x, _ in ends))) and all(
        -0.01 <= y <= height + 0.01 for y in (*upright, *(y for _, y in ends))
    )
