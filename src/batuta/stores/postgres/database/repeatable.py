"""Functions, triggers and views from the files in `functions/`, which `migrate` replaces as a whole.

The database remembers two things. The digest of the files: when it differs from the shipped one, all are replaced. And
a digest of each object as the catalog shows it after that: when one differs, the object was edited or dropped in the
database. `batuta migrate` checks these, too; connecting does not.

`CREATE OR REPLACE` keeps an object with its owner and grants, and calls in progress go on. Only a function whose
arguments or result changed, and a view that lost a column, is dropped and created anew.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

import asyncpg
from msgspec import Struct

from batuta.stores.contract.migrations import checksum

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection  # generic in the stubs alone
Fetch = Callable[..., Awaitable[list[asyncpg.Record]]]
"""Reads rows: of a session, or of a connection in a transaction."""

_OBJECT = re.compile(r"(?:CREATE OR REPLACE|COMMENT ON) (FUNCTION|TRIGGER|VIEW) (?:batuta\.)?(\w+)")
_ORDER = ("function", "view", "trigger")
_CANNOT_REPLACE = (asyncpg.InvalidFunctionDefinitionError, asyncpg.InvalidTableDefinitionError)
"""Another result or other names of arguments; a view without a column that it had."""


class Statement(Struct, frozen=True):
    """One statement of the files."""

    kind: str
    name: str
    sql: str

    @property
    def makes(self) -> str | None:
        """Such as "function claim"; None for a comment."""
        return f"{self.kind} {self.name}" if self.sql.startswith("CREATE") else None


class Shipped(Struct, frozen=True):
    """The files, as statements in the order in which they can be executed."""

    digest: str
    statements: Sequence[Statement]

    @property
    def objects(self) -> set[str]:
        return {statement.makes for statement in self.statements if statement.makes}


def load_repeatable(package: str) -> Shipped:
    """The statements of the `.sql` files in the package's `functions` folder: functions, what calls them, comments."""
    found = sorted(item.name for item in files(package).joinpath("functions").iterdir() if item.name.endswith(".sql"))
    texts = [files(package).joinpath("functions").joinpath(name).read_text("utf-8") for name in found]
    statements = [statement for text in texts for statement in parse_statements(text)]
    made = [statement.makes for statement in statements if statement.makes]
    if twice := {name for name in made if made.count(name) > 1}:
        raise ValueError(f"{min(twice)} stands twice in the files of {package}")
    statements.sort(key=lambda statement: (statement.makes is None, _ORDER.index(statement.kind)))
    return Shipped(checksum("".join(texts)), statements)


def parse_statements(text: str) -> list[Statement]:
    """Split a file into its statements: each begins on a new line, and ends with `;` at the end of a line."""
    statements: list[Statement] = []
    lines: list[str] = []
    in_body = False
    for line in text.splitlines():
        if not lines and (not line.strip() or line.startswith("--")):
            continue
        lines.append(line)
        in_body ^= line.count("$$") % 2 == 1
        if not in_body and line.rstrip().endswith(";"):
            statements.append(_statement("\n".join(lines)))
            lines = []
    if lines:
        raise ValueError(f"a statement has no end: {lines[0]}")
    return statements


def _statement(sql: str) -> Statement:
    found = _OBJECT.match(sql)
    if found is None:
        raise ValueError(
            f"only CREATE OR REPLACE of a function, trigger or view, and COMMENT ON one, may stand here: {sql[:80]}"
        )
    return Statement(found[1].lower(), found[2], sql)


def edited(recorded: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """Objects that are not in the database as `migrate` left them."""
    return sorted(name for name, digest in recorded.items() if installed.get(name) != digest)


async def replace_all(
    connection: Connection,
    shipped: Shipped,
    gone: set[str],
    schema: str,
    sql: Mapping[str, str],
    qualify: Callable[[str], str],
) -> dict[str, str]:
    """Replace all objects inside the caller's transaction, and drop those that are `gone`.

    Returns their digests afterwards.
    """
    await connection.execute("SET LOCAL check_function_bodies = off")  # a function may call a later one
    before = await _identities(connection, schema, sql)
    for statement in shipped.statements:
        if statement.makes:
            await _replace(connection, qualify(statement.sql), before.get(statement.makes, []))
    for name, identities in (await _identities(connection, schema, sql)).items():
        old = before.get(name, [])
        if name in gone:
            await _drop(connection, identities)
        elif name in shipped.objects and set(identities) - set(old):
            # It takes other arguments than before, and exists beside the old one.
            await _drop(connection, [identity for identity in old if identity in identities])
    await connection.execute(qualify("\n".join(one.sql for one in shipped.statements if not one.makes)))
    installed = await read_installed(connection.fetch, schema, sql)
    return {name: digest for name, digest in installed.items() if name in shipped.objects}


async def _replace(connection: Connection, statement: str, old: Sequence[str]) -> None:
    try:
        async with connection.transaction():  # a savepoint
            await connection.execute(statement)
    except _CANNOT_REPLACE:
        await _drop(connection, old)
        await connection.execute(statement)


async def read_installed(fetch: Fetch, schema: str, sql: Mapping[str, str]) -> dict[str, str]:
    """Digests of the functions, triggers and views that the catalog has."""
    return {row["name"]: row["digest"] for row in await fetch(sql["installed"], schema)}


async def _identities(connection: Connection, schema: str, sql: Mapping[str, str]) -> dict[str, list[str]]:
    rows = await connection.fetch(sql["identities"], schema)
    return {row["name"]: row["identities"] for row in rows}


async def _drop(connection: Connection, identities: Sequence[str]) -> None:
    for identity in identities:
        await connection.execute(f"DROP {identity}")
