"""Encodes payloads of closed runs, and schedules, again with the current keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import TypeVar

from msgspec import Struct, json
from msgspec.structs import replace

from batuta.errors import InvalidInput, PayloadSealed, UnknownLetter
from batuta.journal.audit import Act, Verb
from batuta.journal.codec_envelope import is_coded
from batuta.journal.entries import Entry
from batuta.journal.flows.records import EventFilter, FlowFilter
from batuta.journal.marks import CODEC
from batuta.journal.paging import journal_pages, pages
from batuta.journal.records import Attempt, Message, MessageKind, Output, Run, RunFilter
from batuta.journal.reencryption import Rewrite
from batuta.journal.resilience.partners import (
    WEBHOOK,
    PartnerChange,
    PartnerDocs,
    all_partners,
)
from batuta.journal.server.documents import FLOW_SECRETS
from batuta.journal.states import CLOSED
from batuta.journal.store import Store
from batuta.stores.coded.payloads import Place
from batuta.stores.coded.plaintext_checks import PlaintextChecks
from batuta.stores.coded.record_codec import (
    BARE,
    Reader,
    RecordCodec,
    closed_by_store,
    document_place,
    endpoint_place,
    quotes,
)
from batuta.stores.coded.run_facts import fact_of
from batuta.stores.coded.store import CodedStore

R = TypeVar("R", bound=Struct)

_PAGE = 200
_LAST = 2**63 - 1
_AT_ONCE = 500
"""Entries or messages that one transaction writes."""


class Rotated(Struct):
    """The result of a rotation."""

    runs: int = 0
    """Looked at."""
    rewritten: int = 0
    """With payloads that were not written with the first key: they are now, but for a dry run."""
    open: int = 0
    """Skipped, because they are open; only those that need another key."""
    sealed: int = 0
    """Left alone, because something in them cannot be read here."""
    schedules: int = 0
    """Rewritten ones."""
    webhooks: int = 0
    """Endpoints for webhooks whose secrets were rewritten."""
    secrets: int = 0
    """Secrets of flows that were rewritten."""
    flows: int = 0
    """Versions of flows that were rewritten."""
    events: int = 0
    """Rewritten ones."""
    messages: int = 0
    """Messages of the bus that were rewritten."""
    api_keys: int = 0
    """Keys of the server whose hashes were rewritten."""
    marked: bool = False
    """The namespace was marked as encrypted: all of it is, and those without its keys are refused from now on."""

    @property
    def written(self) -> dict[str, int]:
        """How many of what was rewritten, or would be."""
        counts = {"runs": self.rewritten} | {name: getattr(self, name) for name in _REWRITTEN}
        return {name: count for name, count in counts.items() if count}


_REWRITTEN = ("schedules", "webhooks", "secrets", "flows", "events", "messages", "api_keys")


async def rotate(
    store: Store, act: Act | None = None, *, dry_run: bool = False, tell: Callable[[Rotated], None] = lambda _: None
) -> Rotated:
    """Encode again what was not written with the codecs and the first key of this store. It may be stopped and
    repeated.

    `act` is recorded before, except for a dry run, and once more when something was written, with the amount. Raises
    InvalidInput when the store has no codec.
    """
    if not isinstance(store, CodedStore):
        raise InvalidInput("there is no key to encrypt with: set BATUTA_KEYS or BATUTA_KEYS_FILE")
    if act is not None and not dry_run:
        await store.note_act("keys", act)
    done = Rotated()
    rotation = _Rotation(store.inner, store.coding, done, dry_run)
    cursor: str | None = None
    while True:
        page = await store.inner.list_runs(RunFilter(), cursor, _PAGE)
        for run in page.runs:
            await rotation.run(run)
        tell(done)
        cursor = page.cursor
        if cursor is None:
            break
    await rotation.schedules()
    await rotation.endpoints()
    await rotation.secrets()
    await rotation.flows()
    await rotation.events()
    await rotation.messages()
    await rotation.api_keys()
    if not dry_run:
        await _mark(store, done, act)
    if act is not None and not dry_run and (said := done.written):
        await store.note_act("keys", replace(act, after=json.encode(said).decode()))
    return done


async def _mark(store: CodedStore, done: Rotated, act: Act | None) -> None:
    """Mark the namespace as encrypted, now that all of it is; if it was marked before, with the first key."""
    try:
        await store.guard.renew()
    except PayloadSealed:
        done.sealed += 1
    if store.coding.payloads.strict and not done.sealed and CODEC not in await store.marks():
        done.marked = await store.guard.mark(None if act is None else replace(act, verb=Verb.SET_MARK, after="null"))


class _Rotation:
    def __init__(self, store: Store, coding: RecordCodec, done: Rotated, dry_run: bool) -> None:
        self._store, self._coding, self._done, self._dry_run = store, coding, done, dry_run
        self._is_current = coding.payloads.is_current
        self._plaintext_checks = PlaintextChecks(store, coding)

    async def run(self, run: Run) -> None:
        self._done.runs += 1
        is_open, changed = run.state not in CLOSED, False
        try:
            async for rewrite in self._rewrites(run):
                changed = True
                if self._dry_run or is_open:
                    break
                await self._store.rewrite(rewrite)
        except PayloadSealed:
            self._done.sealed += 1
            return
        if is_open:
            self._done.open += changed
        else:
            self._done.rewritten += changed

    async def _rewrites(self, run: Run) -> AsyncIterator[Rewrite]:
        """The last entries first: the store's own entries after them are chained to them."""
        for page in reversed(await self._old_pages(run)):
            entries = await self._entries(run, *page)
            while entries:
                yield Rewrite(run_id=run.run_id, entries=entries[-_AT_ONCE:])
                del entries[-_AT_ONCE:]
        outputs = [one for one in await self._store.outputs(run.run_id) if not self._coding.is_current(one)]
        rest = Rewrite(run_id=run.run_id, attempts=await self._attempts(run))
        rest.outputs = [self._recoded_output(run, output) for output in outputs]
        rest.memo, rest.reason, rest.letter = self._memo(run), self._reason(run), await self._letter(run)
        if rest != Rewrite(run_id=run.run_id):
            yield rest
        if run.run_id == run.chain_id:
            async for rewrite in self._chain(run):
                yield rewrite

    async def _old_pages(self, run: Run) -> list[tuple[int, int]]:
        """First and last numbers of pages of the journal with something to encode again."""
        found = []
        async for page in journal_pages(self._store, run.run_id):
            if self._coding.payloads.strict:
                for entry in filter(closed_by_store, page):
                    await self._plaintext_checks.end(run.run_id, entry, run)
            if not all(self._is_current(entry.body) for entry in page):
                found.append((page[0].ord, page[-1].ord))
        return found

    async def _entries(self, run: Run, first: int, last: int) -> list[Entry]:
        before = max(-1, first - 2)  # with the one before, to which the store's own entry may be chained
        found = await self._store.journal(run.run_id, before, last - before)
        fact = fact_of(run)
        plain = self._coding.plain_entries(fact, found)
        return [
            self._coding.entry(fact, entry)
            for entry, stored in zip(plain, found, strict=True)
            if entry.ord >= first and not self._is_current(stored.body)
        ]

    async def _attempts(self, run: Run) -> list[Attempt]:
        run_id, coding = run.run_id, self._coding
        found = await self._store.attempts(run_id)
        old = [one for one in found if not self._coding.is_current(one)]
        return [coding.attempt(run_id, coding.read_attempt(run_id, one)) for one in old]

    async def _chain(self, run: Run) -> AsyncIterator[Rewrite]:
        inbox, answers = partial(self._store.inbox, run.chain_id), partial(self._store.answers_of, run.chain_id)
        async for page in pages(inbox, "", lambda one: one.message_id, lambda one: len(one.body)):
            old = [one for one in page if one.kind not in BARE and not self._is_current(one.body)]
            for first in range(0, len(old), _AT_ONCE):
                recoded = [await self._recoded_message(run, one) for one in old[first : first + _AT_ONCE]]
                if some := [one for one in recoded if one is not None]:
                    yield Rewrite(run_id=run.run_id, messages=some)
        async for found in pages(answers, "", lambda one: one.name, lambda one: len(one.value or "")):
            outputs = [one for one in found if not self._coding.is_current(one)]
            if outputs:
                yield Rewrite(run_id=run.run_id, outputs=[self._recoded_output(run, one) for one in outputs])

    async def _recoded_message(self, run: Run, message: Message) -> Message | None:
        """None for the store's own message about a child: it holds no payload, and is only accepted together with
        its row."""
        if message.kind is MessageKind.CHILD and self._coding.payloads.strict and not is_coded(message.body):
            return None
        reader = Reader(run.id, run.chain_id)
        if message.kind is MessageKind.START:
            reader = await self._plaintext_checks.reader_of_start(reader, message)
        plain = await self._plaintext_checks.message(reader, message)
        if reader.fact is not None:
            return replace(plain, body=self._coding.start_of(reader.fact, plain.body))
        return self._coding.message(fact_of(run), plain)

    def _recoded_output(self, run: Run, output: Output) -> Output:
        plain = self._coding.read_output(run.run_id, run.chain_id, output)
        return self._coding.output(run.run_id, run.chain_id, plain)

    def _memo(self, run: Run) -> str | None:
        if run.memo == "null" or self._is_current(run.memo):
            return None
        return self._coding.memo(run.chain_id, self._coding.read_memo(run))

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
        return self._coding.encode(self._coding.read(letter)).message

    # -- records that are no part of a run

    def _old(self, records: Iterable[R], read: Callable[[R], R]) -> list[R]:
        """The records that are to be encoded again, decoded. Those that `read` cannot read are counted."""
        found: list[R] = []
        for one in records:
            if not self._coding.is_current(one):
                try:
                    found.append(read(one))
                except PayloadSealed:
                    self._done.sealed += 1
        return found

    async def schedules(self) -> None:
        async for page in pages(
            self._store.schedules, "", lambda one: one.schedule.id, lambda one: len(one.schedule.spec)
        ):
            for row in self._old([one.schedule for one in page], self._coding.read):
                self._done.schedules += 1
                if not self._dry_run:
                    await self._store.put_schedule(self._coding.encode(row), row.revision)

    async def endpoints(self) -> None:
        found = [one for one in await all_partners(self._store) if one.kind == WEBHOOK]
        for one in self._old(found, self._coding.read):
            self._done.webhooks += 1
            recode = partial(self._recoded_endpoint, endpoint_place(one.name))
            if not self._dry_run:
                await self._store.change_partner(WEBHOOK, one.name, "", recode)

    def _recoded_endpoint(self, place: Place, docs: PartnerDocs) -> PartnerChange[None]:
        if docs.doc is None or self._is_current(docs.doc):
            return PartnerChange(None)
        return PartnerChange(None, self._coding.encode_text(self._coding.decode_text(docs.doc, place), place))

    async def secrets(self) -> None:
        found = await self._store.documents(FLOW_SECRETS, _LAST)
        stored = {one.key: one.body for one in found}
        for one in self._old(found, partial(self._coding.read_document, FLOW_SECRETS)):
            coded = self._coding.encode_text(one.body, document_place(FLOW_SECRETS, one.key))
            if self._dry_run or await self._store.rewrite_document(FLOW_SECRETS, one.key, stored[one.key], coded):
                self._done.secrets += 1

    async def flows(self) -> None:
        read = partial(self._store.flows, FlowFilter())
        async for page in pages(read, None, lambda one: (one.name, one.version), lambda one: len(one.document)):
            for row in self._old(page, self._coding.read):
                self._done.flows += 1
                if not self._dry_run:
                    await self._store.put_flow(self._coding.encode(row), row.revision)

    async def events(self) -> None:
        read = partial(self._store.events, EventFilter())
        async for page in pages(read, None, lambda one: one.event_id, lambda one: len(one.payload)):
            old = self._old(page, self._coding.read)
            self._done.events += len(old)
            if old and not self._dry_run:
                await self._store.rewrite_events([self._coding.encode(one) for one in old])

    async def messages(self) -> None:
        read = partial(self._store.messages, None)
        async for page in pages(read, _LAST, lambda one: one.number, lambda one: len(one.body)):
            old = self._old(page, self._coding.read)
            self._done.messages += len(old)
            if old and not self._dry_run:
                await self._store.rewrite_messages({one.number: self._coding.encode(one).body for one in old})

    async def api_keys(self) -> None:
        for key in self._old(await self._store.api_keys(), self._coding.read_key):
            self._done.api_keys += 1
            if not self._dry_run:
                await self._store.rewrite_api_key(key.id, self._coding.api_key(key).digest)
