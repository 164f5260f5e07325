"""Files and names that the pages for contributors mention exist."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGES = sorted((ROOT / "docs" / "contributing").glob("*.md"))
PACKAGE = ROOT / "src" / "batuta"
NAMES = re.compile(r"((?:`[\w.]+`(?:,\s| and\s|\s))+)in\s`([\w/]+\.(?:py|ts|tsx|sql))`")
"""Such as: `resume` and `_resume_outside` in `engine/activities/executor.py`."""
SYMBOL = re.compile(r"`([A-Z]\w+)(?:\.(\w+))?`[^`]{0,12}?\((?:protocol )?`([\w/]+\.py)`\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_path_exists(page: Path) -> None:
    paths = re.findall(r"`([\w./-]+(?:\.py|\.sql|/))`", page.read_text())
    missing = [path for path in paths if not any((base / path).exists() for base in (PACKAGE, PACKAGE.parent, ROOT))]
    assert [path for path in missing if "<" not in path and path not in ("races.py",)] == []


def test_every_symbol_is_in_the_file_that_is_named_with_it() -> None:
    found = [match for page in PAGES for match in SYMBOL.findall(page.read_text())]
    assert len(found) >= 8
    wrong = []
    for name, method, path in found:
        source = (PACKAGE / path).read_text()
        defined = re.search(rf"^(?:class )?{name}\b", source, re.MULTILINE)
        has_method = not method or re.search(rf"^    (?:async )?def {method}\b", source, re.MULTILINE)
        if not defined or not has_method:
            wrong.append((name, method, path))
    assert wrong == []


def test_every_name_stands_in_the_file_that_it_is_said_to_be_in() -> None:
    found = [match for page in PAGES for match in NAMES.findall(page.read_text())]
    assert len(found) > 40
    wrong = []
    for names, path in found:
        source = next(base / path for base in (PACKAGE, ROOT) if (base / path).exists()).read_text()
        words = re.findall(r"`([\w.]+)`", names)
        wrong += [(name, path) for name in words if not re.search(rf"\b{name.split('.')[-1]}\b", source)]
    assert wrong == []


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "contributing" / "index.md").read_text()
    assert [page.name for page in PAGES if page.name != "index.md" and f"({page.name})" not in index] == []
