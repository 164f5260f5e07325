"""All unread messages of a run, read as a worker reads them: a page at a time, so that few are in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from batuta.errors import PayloadDamaged, PayloadSealed
from batuta.ids import RunId
from batuta.journal.records import IN_PAGES, Message, Unread
from batuta.journal.store import SEALED, Store


async def unread_pages(store: Store, run_id: RunId, after: int = 0) -> AsyncIterator[list[Message]]:
    """Each message once; `after` as for `Store.unread`. Raises PayloadSealed."""
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
