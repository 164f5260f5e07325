"""Forks, coded: what the new run takes over is bound to the source, and is written anew for it."""

from __future__ import annotations

from msgspec.structs import replace

from batuta.errors import UnknownRun
from batuta.ids import RunId
from batuta.journal.entries import Entry, chained
from batuta.journal.forks import Fork
from batuta.journal.records import Message, MessageKind
from batuta.journal.store import Store
from batuta.stores.coded.coding import Coding
from batuta.stores.coded.facts import Facts

_BY_ID = frozenset((MessageKind.SIGNAL, MessageKind.UPDATE))


class Forks:
    """Gives new forks. What they copy never changes, so that it can be read before."""

    def __init__(self, store: Store, coding: Coding, facts: Facts) -> None:
        self._store, self._coding, self._facts = store, coding, facts

    async def coded(self, fork: Fork) -> Fork:
        """The same fork without a prefix that the store would copy. Raises PayloadSealed."""
        coding, new_id, new = self._coding, fork.new.run_id, fork.new
        try:
            id = fork.id or (await self._facts.of(fork.source)).id
        except UnknownRun:
            return fork  # the store says so
        kept = await self._entries(fork.source, fork.keep)
        again, messages = await self._again(fork)
        return replace(
            fork,
            new=replace(new, start=coding.start_of(new_id, new.start)),
            keep=-1,
            at=fork.keep if fork.at is None else fork.at,
            entries=[coding.entry(new_id, entry) for entry in (*kept, *fork.entries)],
            close=None if fork.close is None else await self._close(fork.source, fork.close),
            again=again,
            messages=[coding.message(id, message) for message in (*messages, *fork.messages)],
            attempts=[coding.attempt(new_id, attempt) for attempt in fork.attempts],
            outputs=[coding.output(new_id, None, output) for output in fork.outputs],
            memo=await self._memo(fork),
            children=[await self.coded(child) for child in fork.children],
        )

    async def _entries(self, run_id: RunId, last: int) -> list[Entry]:
        found: list[Entry] = []
        while len(found) <= last and (page := await self._store.journal(run_id, len(found) - 1)):
            found += self._coding.plain_entries(run_id, page)
        return found[: last + 1]

    async def _close(self, source: RunId, entry: Entry) -> Entry:
        """It says why and nothing else: it is written as the store writes such entries, chained to what lies there."""
        _, last = await self._store.outcome(source)
        return replace(entry, crc=chained(entry, last.crc if last is not None else 0))

    async def _memo(self, fork: Fork) -> str | None:
        if not fork.id:
            return fork.memo
        run = await self._store.get_run(fork.source)
        return self._coding.memo(fork.id, self._coding.plain_run(run).memo if fork.memo is None else fork.memo)

    async def _again(self, fork: Fork) -> tuple[list[str], list[Message]]:
        """Signals and updates are bound to the id that they were sent to: under another one they are written anew."""
        if not fork.id or not fork.again:
            return fork.again, []
        source, wanted = await self._facts.of(fork.source), set(fork.again)
        found: list[Message] = []
        after = ""
        while page := await self._store.inbox(source.chain_id, after):
            after = page[-1].message_id
            found += [one for one in page if one.message_id in wanted and one.kind in _BY_ID]
        wanted.difference_update(one.message_id for one in found)
        messages = [self._coding.plain_message(source.id, one) for one in found]
        return [one for one in fork.again if one in wanted], sorted(messages, key=lambda message: message.number)
