"""Payloads of closed runs, and schedules, written anew with the keys that are used now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import islice

from msgspec import Struct, json
from msgspec.structs import replace

from batuta.errors import InvalidInput, PayloadSealed, UnknownLetter
from batuta.journal.acts import Act
from batuta.journal.coded import is_coded
from batuta.journal.entries import Entry
from batuta.journal.records import Attempt, Message, Output, Run, RunFilter
from batuta.journal.rewriting import Rewrite
from batuta.journal.states import CLOSED
from batuta.journal.store import Store
from batuta.stores.coded.coding import BARE, Coding, quotes
from batuta.stores.coded.store import CodedStore

_PAGE = 200
_AT_ONCE = 500
"""Entries or messages that one transaction writes."""


class Rotated(Struct):
    """What a rotation found, and did."""

    runs: int = 0
    """Looked at."""
    rewritten: int = 0
    """With payloads that were not written with the first key: they are now, but for a dry run."""
    open: int = 0
    """Left alone, because they are not closed; only those that hold something to be written anew."""
    sealed: int = 0
    """Left alone, because something in them cannot be read here."""
    schedules: int = 0
    """Rewritten ones."""


async def rotate(
    store: Store, act: Act | None = None, *, dry_run: bool = False, tell: Callable[[Rotated], None] = lambda _: None
) -> Rotated:
    """Write anew what was not written with the codecs and the first key of this store. May be stopped and run again.

    `act` is recorded before, but for a dry run, and once more when something was written, with how much.
    Raises InvalidInput when the store has no codec.
    """
    if not isinstance(store, CodedStore):
        raise InvalidInput("there is no key to encrypt with: set BATUTA_KEYS or BATUTA_KEYS_FILE")
    if act is not None and not dry_run:
        await store.note_act("keys", act)
    done = Rotated()
    rotation = _Rotation(store.inner, store.coding, dry_run)
    cursor: str | None = None
    while True:
        page = await store.inner.list_runs(RunFilter(), cursor, _PAGE)
        for run in page.runs:
            await rotation.run(run, done)
        tell(done)
        cursor = page.cursor
        if cursor is None:
            break
    await rotation.schedules(done)
    if act is not None and not dry_run and (done.rewritten or done.schedules):
        written = json.encode({"runs": done.rewritten, "schedules": done.schedules}).decode()
        await store.note_act("keys", replace(act, after=written))
    return done


class _Rotation:
    def __init__(self, store: Store, coding: Coding, dry_run: bool) -> None:
        self._store, self._coding, self._dry_run = store, coding, dry_run
        self._is_current = coding.payloads.is_current

    async def run(self, run: Run, done: Rotated) -> None:
        done.runs += 1
        is_open, changed = run.state not in CLOSED, False
        try:
            async for rewrite in self._rewrites(run):
                changed = True
                if self._dry_run or is_open:
                    break
                await self._store.rewrite(rewrite)
        except PayloadSealed:
            done.sealed += 1
            return
        if is_open:
            done.open += changed
        else:
            done.rewritten += changed

    async def _rewrites(self, run: Run) -> AsyncIterator[Rewrite]:
        """The last entries first: what the store has put behind them is chained to them."""
        entries = await self._entries(run)
        while entries:
            yield Rewrite(run_id=run.run_id, entries=entries[-_AT_ONCE:])
            del entries[-_AT_ONCE:]
        outputs = [one for one in await self._store.outputs(run.run_id) if not self._both(one.value, one.error)]
        rest = Rewrite(run_id=run.run_id, attempts=await self._attempts(run))
        rest.outputs = [self._recoded_output(run, output) for output in outputs]
        rest.memo, rest.reason, rest.letter = self._memo(run), self._reason(run), await self._letter(run)
        if rest != Rewrite(run_id=run.run_id):
            yield rest
        if run.run_id == run.chain_id:
            async for rewrite in self._chain(run):
                yield rewrite

    async def _entries(self, run: Run) -> list[Entry]:
        found: list[Entry] = []
        while page := await self._store.journal(run.run_id, len(found) - 1):
            found += page
        if all(self._is_current(entry.body) for entry in found):
            return []
        plain = self._coding.plain_entries(run.run_id, found)
        return [
            self._coding.entry(run.run_id, entry)
            for entry, stored in zip(plain, found, strict=True)
            if not self._is_current(stored.body)
        ]

    async def _attempts(self, run: Run) -> list[Attempt]:
        old = [one for one in await self._store.attempts(run.run_id) if not self._both(one.error, one.details)]
        coding = self._coding
        return [coding.attempt(run.run_id, coding.read_attempt(run.run_id, one)) for one in old]

    async def _chain(self, run: Run) -> AsyncIterator[Rewrite]:
        after = ""
        while page := await self._store.inbox(run.chain_id, after):
            after = page[-1].message_id
            old = [one for one in page if one.kind not in BARE and not self._is_current(one.body)]
            messages = (self._recoded_message(run, one) for one in old)
            while some := list(islice(messages, _AT_ONCE)):
                yield Rewrite(run_id=run.run_id, messages=some)
        after = ""
        while answers := await self._store.answers_of(run.chain_id, after):
            after = answers[-1].name
            outputs = [one for one in answers if not self._both(one.value, one.error)]
            if outputs:
                yield Rewrite(run_id=run.run_id, outputs=[self._recoded_output(run, one) for one in outputs])

    def _recoded_message(self, run: Run, message: Message) -> Message:
        return self._coding.message(run.id, self._coding.plain_message(run.id, message))

    def _recoded_output(self, run: Run, output: Output) -> Output:
        plain = self._coding.read_output(run.run_id, run.chain_id, output)
        return self._coding.output(run.run_id, run.chain_id, plain)

    def _memo(self, run: Run) -> str | None:
        if run.memo == "null" or self._is_current(run.memo):
            return None
        return self._coding.memo(run.id, self._coding.read_memo(run))

    def _reason(self, run: Run) -> str | None:
        if self._is_current(run.reason) or not (is_coded(run.reason) or quotes(run.state, run.reason)):
            return None
        return self._coding.recoded_reason(run.run_id, run.reason)

    async def _letter(self, run: Run) -> str | None:
        try:
            letter = await self._store.letter(run.run_id)
        except UnknownLetter:
            return None
        if self._is_current(letter.message):
            return None
        return self._coding.letter_text(run.run_id, self._coding.read_letter(letter))

    def _both(self, one: str | None, other: str | None) -> bool:
        return all(text is None or self._is_current(text) for text in (one, other))

    # -- schedules

    async def schedules(self, done: Rotated) -> None:
        after = ""
        while page := await self._store.schedules(after):
            after = page[-1].schedule.id
            for row in [found.schedule for found in page if not self._is_current(found.schedule.spec)]:
                plain = self._coding.plain_schedule(row)
                if plain is row:
                    done.sealed += 1
                    continue
                done.schedules += 1
                if not self._dry_run:
                    await self._store.put_schedule(self._coding.schedule(replace(plain)), row.revision)
