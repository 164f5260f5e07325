"""Forks with encoded payloads: what the new run takes over is bound to the source, and is encoded again for it."""

from __future__ import annotations

from msgspec.structs import replace

from batuta.errors import UnknownRun
from batuta.ids import RunId
from batuta.journal.entries import Entry, chained
from batuta.journal.forks import Fork
from batuta.journal.records import Message, MessageKind, ParentPolicy
from batuta.journal.store import Store
from batuta.stores.coded.record_codec import Reader, RecordCodec
from batuta.stores.coded.run_facts import Fact, Facts, fact_of
from batuta.stores.contract import rules

_BY_ID = frozenset((MessageKind.SIGNAL, MessageKind.UPDATE))


class Forks:
    """Returns new forks. What they copy never changes, so that it can be read before."""

    def __init__(self, store: Store, coding: RecordCodec, facts: Facts) -> None:
        self._store, self._coding, self._facts = store, coding, facts

    async def coded(self, fork: Fork, parent: RunId | None = None) -> Fork:
        """The same fork without a prefix that the store would copy. Raises PayloadSealed."""
        coding, new_id, new = self._coding, fork.new.run_id, fork.new
        try:
            source = await self._store.get_run(fork.source)
        except UnknownRun:
            return fork  # the store says so
        made = fact_of(rules.fork_start(fork, source, ParentPolicy.CANCEL, parent))
        chain_id = made.chain_id
        kept = await self._entries(fact_of(source), fork.keep)
        again, messages = await self._again(fork)
        return replace(
            fork,
            new=replace(new, start=coding.start_of(made, new.start)),
            keep=-1,
            at=fork.keep if fork.at is None else fork.at,
            entries=[coding.entry(made, entry) for entry in (*kept, *fork.entries)],
            close=None if fork.close is None else await self._close(fork.source, fork.close),
            again=again,
            messages=[coding.message(made, message) for message in (*messages, *fork.messages)],
            attempts=[coding.attempt(new_id, attempt) for attempt in fork.attempts],
            outputs=[coding.output(new_id, None, output) for output in fork.outputs],
            memo=await self._memo(fork, chain_id),
            children=[await self.coded(child, new_id) for child in fork.children],
        )

    async def _entries(self, run: Fact, last: int) -> list[Entry]:
        found: list[Entry] = []
        while len(found) <= last and (page := await self._store.journal(run.run_id, len(found) - 1)):
            found += self._coding.plain_entries(run, page)
        return found[: last + 1]

    async def _close(self, source: RunId, entry: Entry) -> Entry:
        """It contains only the cause: it is written like the store's own entries, chained to the stored entry
        before."""
        _, last = await self._store.outcome(source)
        return replace(entry, crc=chained(entry, last.crc if last is not None else 0))

    async def _memo(self, fork: Fork, chain_id: RunId) -> str | None:
        """For another chain it is encoded again."""
        if fork.memo is not None:
            return self._coding.memo(chain_id, fork.memo)
        if not fork.id:
            return None
        return self._coding.memo(chain_id, self._coding.plain_run(await self._store.get_run(fork.source)).memo)

    async def _again(self, fork: Fork) -> tuple[list[str], list[Message]]:
        """Signals and updates are bound to the chain or id that they were sent to: for another one they are encoded
        again."""
        if not fork.id or not fork.again:
            return fork.again, []
        source, wanted = await self._facts.of(fork.source), set(fork.again)
        found: list[Message] = []
        after = ""
        while page := await self._store.inbox(source.chain_id, after):
            after = page[-1].message_id
            found += [one for one in page if one.message_id in wanted and one.kind in _BY_ID]
        wanted.difference_update(one.message_id for one in found)
        reader = Reader(source.id, source.chain_id)
        messages = [self._coding.plain_message(reader, one) for one in found]
        return [one for one in fork.again if one in wanted], sorted(messages, key=lambda message: message.number)
