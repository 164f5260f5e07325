"""Nothing in the repository depends on, or tells about, the machine it was written on."""

import re
import subprocess
from pathlib import Path

from tests.architecture.source import ROOT

MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:root|home|Users|work|opt|mnt|srv|nix)/[\w.-]+")
REGISTRY_HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|registry\.npmjs\.org|registry\.yarnpkg\.com|deb\.debian\.org"
    r"|archive\.ubuntu\.com|--(?:extra-)?index-url|file://"
)

HALF_MERGED = re.compile(r"^(?:<{7}|>{7}) ")


def repository_files() -> list[Path]:
    """What git tracks or would track; without git, everything that is not an environment or a cache."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        return [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    hidden = re.compile(r"^\.(?:git|venv|mypy|ruff|pytest|hypothesis)|^__pycache__$")
    return [path for path in ROOT.rglob("*") if not any(map(hidden.match, path.relative_to(ROOT).parts))]


def offences(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in repository_files():
        if path == Path(__file__) or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if hit := pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {hit.group()}")
    return found


def test_no_file_names_a_path_of_someones_machine() -> None:
    assert not offences(MACHINE_PATH)


def test_no_file_names_the_host_of_a_package_registry() -> None:
    assert not offences(REGISTRY_HOST)


def test_no_file_was_left_half_merged() -> None:
    assert not offences(HALF_MERGED)


def test_no_link_leads_out_of_the_repository() -> None:
    links = [path for path in repository_files() if path.is_symlink()]
    assert [path for path in links if not path.resolve().is_relative_to(ROOT)] == []
