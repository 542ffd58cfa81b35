"""A strict reader of HTML pages: refuses what browsers would silently repair."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = {"meta", "link", "br", "hr", "img", "input"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str]
    content: list[Node | str] = field(default_factory=list)

    @property
    def children(self) -> list[Node]:
        return [part for part in self.content if isinstance(part, Node)]

    @property
    def text(self) -> str:
        """Text of this element and all below it, in order."""
        return "".join(part if isinstance(part, str) else part.text for part in self.content)

    def find(self, tag: str | None = None, **attributes: str) -> list[Node]:
        """All elements below with the tag and attributes; ``class_`` means: is one of the classes."""
        found = []
        for child in self.children:
            if tag in (None, child.tag) and all(child.has(k.rstrip("_"), v) for k, v in attributes.items()):
                found.append(child)
            found += child.find(tag, **attributes)
        return found

    def has(self, name: str, value: str) -> bool:
        own = self.attributes.get(name, "")
        return value in own.split() if name == "class" else value == own


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stack = [Node("page", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"repeated attribute in <{tag} {names}>"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.stack[-1].content.append(node)
        if tag not in VOID:
            self.stack.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.stack[-1].tag == tag, f"</{tag}> closes <{self.stack[-1].tag}>"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.stack[-1].content.append(data)


def read_page(html: str) -> Node:
    """Parse; AssertionError where tags are not properly nested."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert len(reader.stack) == 1, f"not closed: {[node.tag for node in reader.stack[1:]]}"
    return reader.stack[0]


def svg_images(html: str) -> dict[str, ElementTree.Element]:
    """The page's images with an id, each parsed as the XML that it must be."""
    images = {}
    for part in html.split("<svg ")[1:]:
        text = "<svg " + part[: part.index("</svg>") + len("</svg>")]
        image = ElementTree.fromstring(text)
        if "id" in image.attrib:
            images[image.attrib["id"]] = image
    return images
