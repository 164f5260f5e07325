"""I10: every message that a chain of runs accepted is read by one of its entries, and before its end."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from batuta.engine.backend.follow_chain import find_current, find_run
from batuta.errors import PayloadSealed
from batuta.ids import RunId
from batuta.journal.entries import EntryKind
from batuta.journal.paging import all_pages, journal_pages
from batuta.journal.records import REJECTED, MessageKind, Run, RunFilter
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store
from batuta.stores.contract.rules import PROMISED
from batuta.verify.journal import JournalCheck

Tell = Callable[[Run, str], None]

_PAGE = 1_000
_READS_ALL = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})
_ENDED = frozenset({RunState.TERMINATED, RunState.TIMED_OUT})
"""Ends from outside: a cancel is void then."""
_ASKED = ("cancel:", "parent:")
"""Cancels that are meant for whichever run has the id. A parent that cancels a call of its own may miss its child."""


class Mail(Struct):
    """The inbox of a chain, compared with the journal of its last run."""

    again: list[str] = field(default_factory=list)
    """Unread, although an entry has read them."""
    left: list[str] = field(default_factory=list)
    """Unread, and to be read before the run ends."""
    elsewhere: dict[str, MessageKind] = field(default_factory=dict)
    """Read, and by no entry of this run."""


class _Seen(Struct):
    chain_id: RunId
    taken: dict[str, int]
    void: bool
    """Cancels need not be read: it heard one, or was ended from outside."""


class Messages:
    """Takes the runs as they are listed, newest first. A message that no entry of the last run of a chain has read may
    be one of an earlier run."""

    def __init__(self, store: Store, tell: Tell) -> None:
        self._store, self._tell = store, tell
        self._suspects: dict[RunId, tuple[Run, dict[str, MessageKind]]] = {}
        self._seen: list[_Seen] = []

    async def check(self, run: Run, journal: JournalCheck, tell: Callable[[str, str], None]) -> None:
        """Compare journal and inbox: the transaction that reads a message marks it, so that no owner reads it again."""
        if run.chain_id != run.run_id or run.state in CLOSED:
            self._seen.append(_see(run, journal))
        if run.state in CLOSED and await self._has_gone_on(run):
            return  # unread messages belong to the next run, which may have to read again what this one has read
        mail = await self._read(run, journal)
        for message_id in mail.again:
            tell("I10", f"entry {journal.taken[message_id]} has read message {message_id}, and it is still unread")
        if run.state in _READS_ALL and mail.left:
            more = f" and {len(mail.left) - 1} more" if mail.left[1:] else ""
            tell("I10", f"it ended, and did not read message {mail.left[0]}{more}")
        if mail.elsewhere and run.run_id == run.chain_id:
            await self._tell_lost(run, mail.elsewhere)
        elif mail.elsewhere:
            self._suspects[run.chain_id] = (run, mail.elsewhere)

    def look_back(self) -> None:
        """Find messages of the suspects in the journals that were seen since the last call."""
        for seen in self._seen:
            if seen.chain_id in self._suspects:
                missing = self._suspects[seen.chain_id][1]
                _explain(missing, seen)
                if not missing:
                    del self._suspects[seen.chain_id]
        self._seen.clear()

    async def settle(self) -> None:
        """Report what was found in no journal. The order of the list need not be that of the runs, when the clock was
        set back: so each run of a suspect is looked at again."""
        for run, missing in self._suspects.values():
            try:
                await self._look_through_chain(run, missing)
            except PayloadSealed:
                continue
            if missing and await find_run(self._store, run.chain_id) is not None:
                await self._tell_lost(run, missing)

    async def _look_through_chain(self, run: Run, missing: dict[str, MessageKind]) -> None:
        where = RunFilter(id_prefix=run.id)
        async for page in all_pages(lambda cursor: self._store.list_runs(where, cursor)):
            for one in page.runs:
                if one.chain_id == run.chain_id:
                    _explain(missing, _see(one, await self._journal(one.run_id)))
            if not missing:
                return

    async def _read(self, run: Run, journal: JournalCheck) -> Mail:
        mail, after = Mail(), ""
        void = _see(run, journal)
        cancelled = journal.end is EntryKind.CANCELLED  # the cancel closed it before it began
        while page := await self._store.received(run.chain_id, after, _PAGE):
            after = page[-1].message_id
            for one in page:
                if one.read:
                    if one.kind in PROMISED:
                        mail.elsewhere[one.message_id] = one.kind
                    continue
                if one.message_id in journal.taken:
                    mail.again.append(one.message_id)
                if one.kind in PROMISED and not (cancelled and one.kind is MessageKind.CANCEL):
                    mail.left.append(one.message_id)
            _explain(mail.elsewhere, void)
        return mail

    async def _tell_lost(self, run: Run, missing: dict[str, MessageKind]) -> None:
        updates = [message_id for message_id, kind in missing.items() if kind is MessageKind.UPDATE]
        for message_id, answer in zip(
            updates, await self._store.answers([(run.chain_id, one) for one in updates]), strict=True
        ):
            if answer is not None and answer.ord == REJECTED:  # that leaves no trace in the journal
                del missing[message_id]
        now = await find_run(self._store, run.run_id)
        if missing and now is not None and now.head == run.head:  # else row and inbox are of two moments
            first, more = next(iter(missing)), f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            self._tell(run, f"message {first}{more} is marked as read, and no entry of its chain has read it")

    async def _journal(self, run_id: RunId) -> JournalCheck:
        journal = JournalCheck(lambda *_: None)
        async for page in journal_pages(self._store, run_id):
            for entry in page:
                journal.feed(entry)
        return journal

    async def _has_gone_on(self, run: Run) -> bool:
        current = await find_current(self._store, run.id)
        return current is not None and current.run_id != run.run_id and current.chain_id == run.chain_id


def _see(run: Run, journal: JournalCheck) -> _Seen:
    void = journal.cancelled or journal.end is EntryKind.CANCELLED or run.state in _ENDED
    return _Seen(run.chain_id, journal.taken, void)


def _explain(missing: dict[str, MessageKind], seen: _Seen) -> None:
    """Forget the messages that this run has read, or had no use for."""
    for message_id, kind in list(missing.items()):
        void = kind is MessageKind.CANCEL and (seen.void or not message_id.startswith(_ASKED))
        if void or message_id in seen.taken:
            del missing[message_id]
