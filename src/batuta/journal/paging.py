"""Reads long lists page by page: by cursor, or journals and inboxes in pages that fit into memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from batuta.errors import PayloadDamaged, PayloadSealed
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import IN_PAGES, SEALED, Message, Unread

if TYPE_CHECKING:  # `import batuta` is everybody's, and it has no store
    from batuta.journal.store import Store

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


def journal_pages(store: Store, run_id: RunId, after: int = -1) -> AsyncIterator[list[Entry]]:
    """The entries of a journal after that one, in order."""
    return pages(
        lambda after, limit: store.journal(run_id, after, limit),
        after,
        lambda entry: entry.ord,
        lambda entry: len(entry.body),
    )


async def unread_pages(store: Store, run_id: RunId, after: int = 0) -> AsyncIterator[list[Message]]:
    """All unread messages of a run, as a worker reads them: a page at a time, so that few are in memory. Each once;
    `after` as for `Store.unread`. Raises PayloadSealed."""
    told = set[str]()
    more = True
    while more:
        page = (await store.unread([run_id], after=after)).get(run_id, Unread(-1, []))
        if page.epoch == SEALED:
            raise sealed_error(page.sealed)
        messages = [one for one in page.messages if one.message_id not in told]
        told.update(one.message_id for one in messages if one.kind not in IN_PAGES)
        after, more = last_of_page(page.messages), page.more
        yield messages


def last_of_page(messages: Sequence[Message]) -> int:
    """The number after which the next page begins."""
    return max((one.number for one in messages if one.kind in IN_PAGES), default=0)


def sealed_error(why: str) -> PayloadSealed:
    """The error that a store told in words."""
    return (PayloadDamaged if why.startswith(PayloadDamaged.__name__) else PayloadSealed)(why)
