"""What a reader sees of an HTML page: tests of words look here, not at templates."""

import re
from html.parser import HTMLParser


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag, attrs):
        self._hidden += tag in ("style", "script", "title")

    def handle_endtag(self, tag):
        self._hidden -= tag in ("style", "script", "title")

    def handle_data(self, data):
        if not self._hidden:
            self.parts.append(data)


def visible(page: str) -> str:
    """Return the text of a page with single blanks; nothing that Jinja or Python left over may be in it."""
    parser = _Text()
    parser.feed(page)
    text = " ".join("".join(parser.parts).split())
    for left_over in ("<Macro", "{{", "{%", "Undefined", "None"):
        assert left_over not in text, text[max(0, text.index(left_over) - 50) :][:120]
    return text


def offline(page: str) -> bool:
    """Whether a page names nothing that a browser would have to load."""
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    return all(a.startswith(("#", "data:")) for a in addresses) and not re.search(r"https?:|@import|url\((?!#)", page)
