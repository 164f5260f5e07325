"""Records with their payloads coded, and decoded again: each bound to the place where it lies.

Entries, outputs and attempts are bound to their run; starts, too, but for debounced ones, which take the place of one
another: those are bound to the name of what they start. Signals and updates are bound to the id that they go to,
answers from outside and from children to the run that asked, answers to updates to the chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import UNSET, DecodeError, json
from msgspec.structs import replace

from batuta.codecs.base import Bound
from batuta.errors import PayloadDamaged, PayloadSealed
from batuta.ids import RunId
from batuta.journal.coded import is_coded
from batuta.journal.entries import FROM_OUTSIDE, Body, Entry, chained, crc_holds
from batuta.journal.failures import Failure
from batuta.journal.letters import DeadLetter, NewLetter
from batuta.journal.records import Attempt, Message, MessageKind, Move, NewRun, Output, OutputKind, Run
from batuta.journal.schedules import Schedule
from batuta.journal.states import RunState
from batuta.stores.coded.payloads import Payloads

R = TypeVar("R", Output, Attempt)
Code = Callable[[str, Bound], str]

BARE = frozenset((MessageKind.CANCEL, MessageKind.TERMINATE, MessageKind.PAUSE))
"""Messages whose body is no payload."""
_TOLD = frozenset((RunState.NEEDS_CODE, RunState.CONTINUED, RunState.FAILED))
"""Moves whose reason may quote a payload."""
_NOTHING = "null"
_SEALED = tuple(f"{kind.__name__}: " for kind in (PayloadSealed, PayloadDamaged))
_decode_body = json.Decoder(Body).decode


def why_sealed(what: str, error: PayloadSealed) -> str:
    """The reason that a run is parked with."""
    return f"{type(error).__name__}: {what} cannot be read: {error}"


class Coding:
    """Gives new records and never changes those it is given: their owners may write them again."""

    def __init__(self, payloads: Payloads) -> None:
        self.payloads = payloads

    # -- what is written

    def entry(self, run_id: RunId, entry: Entry) -> Entry:
        body, crc = self.payloads.encode_body(entry.body, entry.crc, self._entry_bound(run_id, entry))
        return Entry(entry.ord, entry.kind, entry.at, crc, body)

    def new_run(self, new: NewRun) -> NewRun:
        start = self.payloads.encode(new.start, self._start_bound(new.run_id, new.name, bool(new.debounce)))
        return replace(new, start=start, memo=self.memo(new.id, new.memo, new.name, debounced=bool(new.debounce)))

    def memo(self, id: str, memo: str, name: str = "", *, debounced: bool = False) -> str:
        return memo if memo == _NOTHING else self.payloads.encode(memo, self._memo_bound(id, name, debounced))

    def start_of(self, run_id: RunId, start: str) -> str:
        """The start of a successor."""
        return self.payloads.encode(start, self._start_bound(run_id, "", False))

    def message(self, id: str | None, message: Message) -> Message:
        """`id`: of the run that it goes to; None: that is not known, it comes with a debounced start."""
        if message.kind in BARE:
            return message
        return replace(message, body=self.payloads.encode(message.body, self._message_bound(id, message)))

    def outcome(self, run_id: RunId, parent: RunId, outcome: str) -> str:
        """What a parent is told of a child's end."""
        return self.payloads.encode(outcome, self._child_bound(f"child:{run_id}", str(parent)))

    def output(self, run_id: RunId, chain_id: RunId | None, output: Output) -> Output:
        return self._both(self.payloads.encode, self._output_bound(run_id, chain_id, output), output, "value")

    def attempt(self, run_id: RunId, attempt: Attempt) -> Attempt:
        if attempt.error is None and attempt.details is None:
            return attempt
        return self._both(self.payloads.encode, self._attempt_bound(run_id, attempt), attempt, "details")

    def reason(self, run_id: RunId, move: Move) -> str:
        if not quotes(move.state, move.reason):
            return move.reason
        return self.payloads.encode(move.reason, self.payloads.bound(run_id, "reason"))

    def recoded_reason(self, run_id: RunId, reason: str) -> str:
        bound = self.payloads.bound(run_id, "reason")
        return self.payloads.encode(self.payloads.decode(reason, bound, plain=True), bound)

    def letter(self, run_id: RunId, letter: NewLetter) -> NewLetter:
        return replace(letter, message=self.letter_text(run_id, letter.message))

    def letter_text(self, run_id: RunId, message: str) -> str:
        return self.payloads.encode(message, self.payloads.bound(run_id, "letter"))

    def schedule(self, schedule: Schedule) -> Schedule:
        return replace(schedule, spec=self.payloads.encode(schedule.spec, self._schedule_bound(schedule.id)))

    # -- what is read; raises PayloadSealed unless told otherwise

    def plain_entry(self, run_id: RunId, entry: Entry) -> Entry:
        bound, by_store = self._entry_bound(run_id, entry), closed_by_store(entry)
        try:
            body, crc = self.payloads.decode_body(entry.body, entry.crc, bound, plain=by_store)
        except PayloadSealed as error:
            raise type(error)(f"entry {entry.ord} of run {run_id} cannot be read: {error}") from None
        return Entry(entry.ord, entry.kind, entry.at, crc, body)

    def plain_entries(self, run_id: RunId, entries: Iterable[Entry]) -> list[Entry]:
        """What the store has put behind the last one is chained to what lies there: chain it to what that says."""
        found: list[Entry] = []
        stored: Entry | None = None
        for entry in entries:
            plain = self.plain_entry(run_id, entry)
            if stored is not None and closed_by_store(entry) and crc_holds(entry, stored.crc):
                plain.crc = chained(entry, found[-1].crc)
            found.append(plain)
            stored = entry
        return found

    def plain_message(self, id: str, message: Message) -> Message:
        kind = message.kind
        if kind in BARE:
            return message
        try:
            told = kind is MessageKind.CHILD and _has_no_value(message.body)
            body = self._plain_body(id, message, plain=told)
        except PayloadSealed as error:
            raise type(error)(f"message {message.message_id!r} cannot be read: {error}") from None
        return replace(message, body=body)

    def plain_run(self, run: Run) -> Run:
        """Never raises: what cannot be read says so."""
        if run.memo != _NOTHING:
            run = replace(run, memo=self._plain_memo(run))
        if is_coded(run.reason):
            bound = self.payloads.bound(run.run_id, "reason")
            try:
                run = replace(run, reason=self.payloads.decode(run.reason, bound))
            except PayloadSealed as error:
                run = replace(run, reason=why_sealed("the reason", error))
        return run

    def plain_attempt(self, run_id: RunId, attempt: Attempt) -> Attempt:
        """Never raises."""
        try:
            return self.read_attempt(run_id, attempt)
        except PayloadSealed as error:
            return replace(attempt, error=_as_failure(error), details=None)

    def read_output(self, run_id: RunId, chain_id: RunId | None, output: Output) -> Output:
        return self._both(self.payloads.decode, self._output_bound(run_id, chain_id, output), output, "value")

    def plain_answer(self, chain_id: RunId, output: Output) -> Output:
        """Never raises: who waits for it is told."""
        try:
            return self.read_output(chain_id, chain_id, output)
        except PayloadSealed as error:
            return replace(output, value=None, error=_as_failure(error))

    def plain_letter(self, letter: DeadLetter) -> DeadLetter:
        """Never raises."""
        try:
            text = self.read_letter(letter)
        except PayloadSealed as error:
            text = why_sealed("the message", error)
        return replace(letter, message=text)

    def read_letter(self, letter: DeadLetter) -> str:
        return self.payloads.decode(letter.message, self.payloads.bound(letter.run_id, "letter"))

    def plain_schedule(self, schedule: Schedule) -> Schedule:
        """Never raises: one that cannot be read stays as it is, and is refused by whoever would read it."""
        try:
            return replace(schedule, spec=self.payloads.decode(schedule.spec, self._schedule_bound(schedule.id)))
        except PayloadSealed:
            return schedule

    # -- places

    def _entry_bound(self, run_id: RunId, entry: Entry) -> Bound:
        return self.payloads.bound(run_id, "entry", entry.ord, entry.kind.value, entry.at)

    def _start_bound(self, run_id: RunId | str, name: str, debounced: bool) -> Bound:
        return self.payloads.bound(f"debounced {name}" if debounced else run_id, "start")

    def _memo_bound(self, id: str, name: str, debounced: bool) -> Bound:
        return self.payloads.bound(f"debounced {name}" if debounced else f"id {id}", "memo")

    def _message_bound(self, id: str | None, message: Message) -> Bound:
        match message.kind:
            case MessageKind.START:
                return self._start_bound(message.message_id.removeprefix("start:"), "", False)
            case MessageKind.CHILD:
                return self._child_bound(message.message_id, message.name)
            case MessageKind.ACTIVITY:
                return self.payloads.bound(message.name, "activity", message.message_id)
        owner = "debounced" if id is None else f"id {id}"
        return self.payloads.bound(owner, message.kind.value, message.name, message.message_id)

    def _child_bound(self, message_id: str, parent: str) -> Bound:
        return self.payloads.bound(parent, "child", message_id)

    def _output_bound(self, run_id: RunId, chain_id: RunId | None, output: Output) -> tuple[object, ...]:
        owner = chain_id if output.kind is OutputKind.ANSWER else run_id
        return owner, output.kind.value, output.name

    def _attempt_bound(self, run_id: RunId, attempt: Attempt) -> tuple[object, ...]:
        return run_id, "attempt", attempt.seq, attempt.number

    def _schedule_bound(self, id: str) -> Bound:
        return self.payloads.bound(f"schedule {id}", "spec")

    # -- parts

    def _both(self, code: Code, place: tuple[object, ...], record: R, other: str) -> R:
        """A record with `error` and another payload, each of which may be None."""
        given: dict[str, str | None] = {"error": record.error, other: getattr(record, other)}
        return replace(
            record,
            **{name: code(text, self.payloads.bound(*place, name)) for name, text in given.items() if text is not None},
        )

    def read_attempt(self, run_id: RunId, attempt: Attempt) -> Attempt:
        if attempt.error is None and attempt.details is None:
            return attempt
        try:
            return self._both(self.payloads.decode, self._attempt_bound(run_id, attempt), attempt, "details")
        except PayloadSealed as error:
            raise type(error)(f"attempt {attempt.number} of call {attempt.seq} cannot be read: {error}") from None

    def _plain_body(self, id: str, message: Message, *, plain: bool) -> str:
        try:
            return self.payloads.decode(message.body, self._message_bound(id, message), plain=plain)
        except PayloadDamaged:
            try:
                if message.kind is MessageKind.START:
                    return self.payloads.decode(message.body, self._start_bound("", message.name, True))
                return self.payloads.decode(message.body, self._message_bound(None, message))
            except PayloadSealed:
                pass
            raise

    def read_memo(self, run: Run) -> str:
        try:
            return self.payloads.decode(run.memo, self._memo_bound(run.id, run.name, False))
        except PayloadDamaged:
            try:
                return self.payloads.decode(run.memo, self._memo_bound(run.id, run.name, True))
            except PayloadSealed:
                pass
            raise

    def _plain_memo(self, run: Run) -> str:
        try:
            return self.read_memo(run)
        except PayloadSealed as error:
            return json.encode(why_sealed("the memo", error)).decode()


def quotes(state: RunState, reason: str) -> bool:
    """Whether this reason of a run that is in that state may quote a payload."""
    return bool(reason) and state in _TOLD and not reason.startswith(_SEALED)


def closed_by_store(entry: Entry) -> bool:
    """Whether the store may have written it itself: the end of a run that was over its time, say."""
    return entry.kind in FROM_OUTSIDE and not is_coded(entry.body)


def _has_no_value(body: str) -> bool:
    """Whether the store may have written it: of a child that it closed."""
    try:
        return not is_coded(body) and _decode_body(body).value is UNSET
    except DecodeError:
        return False


def _as_failure(error: PayloadSealed) -> str:
    kind = type(error)
    return json.encode(Failure(f"{kind.__module__}:{kind.__qualname__}", str(error), retryable=False)).decode()
