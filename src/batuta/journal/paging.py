"""Reads long lists page by page: by cursor, or journals and inboxes in pages that fit into memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from batuta.ids import RunId
from batuta.journal.entries import Entry

T = TypeVar("T")
K = TypeVar("K")
P = TypeVar("P", bound="Listed")

PAGE_BYTES = 8 * 1024 * 1024
"""About so much is held at a time."""
_FIRST, _MOST = 4, 1_000


class Listed(Protocol):
    """A page of a list."""

    @property
    def cursor(self) -> str | None: ...


class Journals(Protocol):
    """A store of journals."""

    async def journal(self, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]: ...


async def all_pages(read: Callable[[str | None], Awaitable[P]]) -> AsyncIterator[P]:
    """The pages of `read(cursor)`, to the last one."""
    cursor: str | None = None
    while True:
        page = await read(cursor)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


async def pages(
    read: Callable[[K, int], Awaitable[list[T]]], after: K, key_of: Callable[[T], K], size_of: Callable[[T], int]
) -> AsyncIterator[list[T]]:
    """The rows of `read(after, limit)`, page by page. The size of those read tells how many come with the next page."""
    limit = _FIRST
    while page := await read(after, limit):
        after = key_of(page[-1])
        size = sum(size_of(one) for one in page) // len(page) + 1
        yield page
        limit = max(1, min(_MOST, PAGE_BYTES // size))


def journal_pages(store: Journals, run_id: RunId, after: int = -1) -> AsyncIterator[list[Entry]]:
    """The entries of a journal after that one, in order."""
    return pages(
        lambda after, limit: store.journal(run_id, after, limit),
        after,
        lambda entry: entry.ord,
        lambda entry: len(entry.body),
    )
