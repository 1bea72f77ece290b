"""What a reader sees of an HTML page: tests of words look here, not at templates."""

import functools
import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """The visible parts and the start tags of a page or a part of one, whose tags are closed in order."""

    EMPTY = ("meta", "link", "input", "img", "br", "wbr")
    HIDDEN = {"style", "script", "title"}

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.stack: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.stack += [] if tag in self.EMPTY else [tag]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if not self.HIDDEN.intersection(self.stack):
            self.parts.append(data)


@functools.cache
def parsed(page: str) -> Page:
    """Return what is found in a page."""
    parser = Page()
    parser.feed(page)
    assert parser.stack == []
    return parser


def visible(page: str) -> str:
    """Return the text of a page with single blanks; nothing that Jinja or Python left over may be in it."""
    text = " ".join("".join(parsed(page).parts).split())
    for left_over in ("<Macro", "{{", "{%", "Undefined", "None"):
        assert left_over not in text, text[max(0, text.index(left_over) - 50) :][:120]
    return text


def offline(page: str) -> bool:
    """Whether a page names nothing that a browser would have to load; links to tables beside it are loaded later."""
    addresses = [a for a in re.findall(r'(?:src|href)="([^"]*)"', page) if not a.endswith((".csv", ".tex"))]
    return all(a.startswith(("#", "data:")) for a in addresses) and not re.search(r"https?:|@import|url\((?!#)", page)
