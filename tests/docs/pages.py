"""The documentation as data: pages, links, headings and code blocks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)|!\[[^\]\n]*\]\((?P<image>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """One fenced block: ``info`` is what follows the backticks, ``line`` where its body begins."""

    info: str
    body: str
    line: int


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(page: Path) -> Iterator[str]:
    for found in LINK.finditer(FENCE.sub("", page.read_text())):
        yield found["target"] or found["image"]


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get, in the way of GitHub."""
    headings = HEADING.findall(FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def snippets(page: Path) -> Iterator[Snippet]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("body")) + 1
        yield Snippet(found["info"].strip(), found["body"], line)
