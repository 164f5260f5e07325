"""No page points at something that is not there."""

from pathlib import Path

import pytest

from tests.docs.pages import anchors, links, name, pages


def broken(page: Path, link: str) -> bool:
    if link.startswith(("https://", "http://", "mailto:")):
        return False
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target)


@pytest.mark.parametrize("page", pages(), ids=name)
def test_every_link_to_a_file_or_heading_leads_somewhere(page: Path) -> None:
    assert not [link for link in links(page) if broken(page, link)]
