"""Encodes and decodes the payloads of records, each bound to its place.

Structs mark the fields that hold payloads; `_each` walks over those of one record, for which this module knows the
places. An entry is the only one that is not walked: its checksum goes with its payload.

Entries, starts, attempts, published values, reasons and dead letters are bound to their run; entries and starts also to
what its row says that it is (`Fact.identity`). Memos, answers to updates, and signals and updates whose receiver is
known, are bound to the chain, the messages also to its id; other signals and updates to the id that they go to. Answers
from outside and from children are bound to the run that asked. A reader uses the run that it reads for, never what the
row says about itself.
`docs/operating/payload-security.md` has the table. Earlier versions bound some of them to less: `_OLD` places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from msgspec import DecodeError, Struct, json
from msgspec.structs import replace

from batuta.codecs.base import Bound
from batuta.errors import BadData, PayloadDamaged, PayloadSealed, told
from batuta.ids import RunId
from batuta.journal.bus.messages import Delivery, NewMessage, StoredMessage
from batuta.journal.codec_envelope import is_coded, join, payload_fields
from batuta.journal.dead_letters import DeadLetter
from batuta.journal.entries import Body, Entry, chained, crc_holds
from batuta.journal.failures import Failure
from batuta.journal.flows.records import EventRow, FlowRow
from batuta.journal.kinds import CLOSING_ENTRIES
from batuta.journal.records import (
    ANSWERS,
    Attempt,
    Message,
    MessageKind,
    Move,
    NewLetter,
    NewRun,
    Output,
    OutputKind,
    Run,
)
from batuta.journal.resilience.partners import Partner
from batuta.journal.schedules import ScheduleRow
from batuta.journal.server.api_keys import StoredKey
from batuta.journal.server.documents import Document
from batuta.journal.server.requests import KeptRequest
from batuta.journal.states import RunState
from batuta.stores.coded.payloads import Payloads, Place
from batuta.stores.coded.run_facts import Fact, fact_of

M = TypeVar("M", NewMessage, Delivery, StoredMessage)
R = TypeVar("R", bound=Struct)
Code = Callable[[str, Place], str]
Places = Callable[[str], Place | None]
"""The place of each field; None for a text that is no payload."""

BARE = frozenset((MessageKind.CANCEL, MessageKind.TERMINATE, MessageKind.PAUSE))
"""Messages whose body is not a payload."""
_TOLD = frozenset((RunState.NEEDS_CODE, RunState.CONTINUED, RunState.FAILED))
"""Moves whose reason may quote a payload."""
_NOTHING = "null"
_START = "start:"
_SEALED = tuple(f"{kind.__name__}: " for kind in (PayloadSealed, PayloadDamaged))
_decode_body = json.Decoder(Body).decode


class Reader(NamedTuple):
    """For whom messages are read: a run, or a whole chain."""

    id: str
    chain_id: RunId
    run_id: RunId | None = None
    """None: for any run of the chain."""
    fact: Fact | None = None
    """Of the run whose start is read."""


def reader(run: Fact) -> Reader:
    return Reader(run.id, run.chain_id, run.run_id, run)


def why_sealed(what: str, error: PayloadSealed) -> str:
    """The reason that a run is parked with."""
    return f"{type(error).__name__}: {what} cannot be read: {error}"


class RecordCodec:
    """Gives new records and never changes those it is given: their owners may write them again."""

    def __init__(self, payloads: Payloads) -> None:
        self.payloads = payloads

    # -- records whose fields tell their place: see `_PLACES`

    def encode(self, record: R) -> R:
        return _each(self.encode_text, _PLACES[type(record)](record), record)

    def read(self, record: R) -> R:
        """Raises PayloadSealed."""
        return _each(self.decode_text, _PLACES[type(record)](record), record)

    def plain_event(self, event: EventRow) -> EventRow:
        """Never raises: one that cannot be read says so."""
        try:
            return self.read(event)
        except PayloadSealed as error:
            return replace(event, payload=never_plain(event.payload), sealed=told(error))

    def plain_flow(self, flow: FlowRow) -> FlowRow:
        """Never raises: one that cannot be read says so."""
        try:
            return self.read(flow)
        except PayloadSealed as error:
            return replace(flow, document=never_plain(flow.document), sealed=told(error))

    def plain_letter(self, letter: DeadLetter) -> DeadLetter:
        """Never raises."""
        try:
            return self.read(letter)
        except PayloadSealed as error:
            return replace(letter, message=why_sealed("the message", error))

    def plain_published(self, message: M) -> M:
        """Never raises: a body that cannot be read stays as it is."""
        try:
            return self.read(message)
        except PayloadSealed:
            return replace(message, body=never_plain(message.body))

    # -- texts at a place

    def encode_text(self, text: str, place: Place) -> str:
        return self.payloads.encode(text, self.payloads.bound(*place))

    def decode_text(self, text: str, place: Place) -> str:
        """Raises PayloadSealed."""
        return self.payloads.decode(text, self.payloads.bound(*place), place)

    # -- encoding

    def entry(self, run: Fact, entry: Entry) -> Entry:
        bound = self.payloads.bound(run.run_id, "entry", entry.ord, entry.kind.value, entry.at, run.identity)
        body, crc = self.payloads.encode_body(entry.body, entry.crc, bound)
        return Entry(entry.ord, entry.kind, entry.at, crc, body)

    def new_run(self, new: NewRun, instead: Run | None = None) -> NewRun:
        """`instead`: the run that is to do this one's work, which is debounced."""
        run = fact_of(new if instead is None else instead)
        places = {"start": _start_place(run), "memo": _memo_place(run.chain_id, new.memo)}
        return replace(_each(self.encode_text, places.__getitem__, new), instead=run.run_id if new.debounce else None)

    def memo(self, chain_id: RunId, memo: str) -> str:
        place = _memo_place(chain_id, memo)
        return memo if place is None else self.encode_text(memo, place)

    def start_of(self, run: Fact, start: str) -> str:
        """The body of the run's start message."""
        return self.encode_text(start, _start_place(run))

    def compensation(self, new: NewRun) -> NewRun:
        """The run that is kept ready for the time that its parent times out: it begins for that parent alone."""
        return replace(
            self.new_run(new), start=self.encode_text(new.start, _compensation_place(new.run_id, new.parent_run_id))
        )

    def message(self, run: Fact, message: Message) -> Message:
        """One to the chain of a run."""
        return self._message(_place_in_chain(run.chain_id, run.id, message), message)

    def message_to_id(self, id: str, message: Message) -> Message:
        """A message to the chain that has the id at delivery."""
        return self._message(_place_of(_to_id(id), message), message)

    def _message(self, place: Place, message: Message) -> Message:
        return message if message.kind in BARE else _each(self.encode_text, _only(place), message)

    def move(self, run_id: RunId, parent: RunId | None, move: Move) -> Move:
        """`parent`: who is told the outcome, if it is a payload."""
        told_to = None if parent is None else (parent, "child", f"child:{run_id}")
        move = _each(self.encode_text, {"reason": None, "outcome": told_to}.__getitem__, move)
        if not quotes(move.state, move.reason):
            return move
        try:
            return _each(self.encode_text, {"reason": _reason_place(run_id), "outcome": None}.__getitem__, move)
        except BadData as error:  # a run that cannot be written can be parked all the same
            return replace(move, reason=why_sealed("the reason", PayloadSealed(str(error))))

    def output(self, run_id: RunId, chain_id: RunId | None, output: Output) -> Output:
        return _each(self.encode_text, _by_field(_output_place(run_id, chain_id, output)), output)

    def attempt(self, run_id: RunId, attempt: Attempt) -> Attempt:
        return _each(self.encode_text, _by_field(_attempt_place(run_id, attempt)), attempt)

    def recoded_reason(self, run_id: RunId, reason: str) -> str:
        place = _reason_place(run_id)
        return self.encode_text(self.payloads.decode(reason, self.payloads.bound(*place), place, plain=True), place)

    def letter(self, run_id: RunId, letter: NewLetter) -> NewLetter:
        return _each(self.encode_text, _only(_letter_place(run_id)), letter)

    def api_key(self, key: StoredKey) -> StoredKey:
        """An API key of the server: only holders of a payload key can make one."""
        return _each(self._code_key(self.payloads.encode, key), _only(_key_place(key)), key)

    def read_key(self, key: StoredKey) -> StoredKey:
        """Raises PayloadSealed."""
        plain = _each(self._code_key(self.payloads.decode, key), _only(_key_place(key)), key)
        if not plain.digest:
            raise PayloadDamaged(f"api key {key.id!r} cannot be read: its hash is empty")
        return plain

    def plain_key(self, key: StoredKey) -> StoredKey:
        """Never raises: one that cannot be believed fits no key."""
        try:
            return self.read_key(key)
        except PayloadSealed:
            return replace(key, digest="")

    def _code_key(self, code: Callable[[str, Bound], str], key: StoredKey) -> Code:
        """Keys are of the namespace in their row, which need not be the store's."""
        return lambda text, place: code(text, self.payloads.bound(*place, namespace=key.namespace))

    # -- decoding; raises PayloadSealed unless stated otherwise

    def plain_entry(self, run: Fact, entry: Entry) -> Entry:
        place = (run.run_id, "entry", entry.ord, entry.kind.value, entry.at)
        try:
            by_store = closed_by_store(entry)
            if by_store and self.payloads.strict:
                _refuse_more_than_a_reason(entry)
            bound, old = self.payloads.bound(*place, run.identity), (place, (*place, run.name))
            body, crc = self.payloads.decode_body(entry.body, entry.crc, bound, *old, plain=by_store)
        except PayloadSealed as error:
            raise type(error)(f"entry {entry.ord} of run {run.run_id} cannot be read: {error}") from None
        return Entry(entry.ord, entry.kind, entry.at, crc, body)

    def plain_entries(self, run: Fact, entries: Iterable[Entry]) -> list[Entry]:
        """The store's own entry after the last one is chained to the stored text: chain it to the decoded one."""
        found: list[Entry] = []
        stored: Entry | None = None
        for entry in entries:
            plain = self.plain_entry(run, entry)
            if stored is not None and closed_by_store(entry) and crc_holds(entry, stored.crc):
                plain.crc = chained(entry, found[-1].crc)
            found.append(plain)
            stored = entry
        return found

    def plain_message(self, reader: Reader, message: Message) -> Message:
        if message.kind in BARE:
            return message
        try:
            return _each(lambda body, _: self._plain_body(reader, message, body), _only(()), message)
        except PayloadSealed as error:
            raise type(error)(f"message {message.message_id!r} cannot be read: {error}") from None

    def plain_compensation(self, run: Run, message: Message) -> Message:
        """The start of a run that was kept ready for the time that its parent times out."""
        try:
            return _each(self.decode_text, _only(_compensation_place(run.run_id, run.parent_run_id)), message)
        except PayloadSealed as error:
            raise type(error)(f"message {message.message_id!r} cannot be read: {error}") from None

    def plain_run(self, run: Run) -> Run:
        """Never raises: what cannot be read says so."""
        if run.memo != _NOTHING:
            run = replace(run, memo=self._plain_memo(run))
        if is_coded(run.reason) or (self.payloads.strict and quotes(run.state, run.reason)):
            try:
                run = replace(run, reason=self.decode_text(run.reason, _reason_place(run.run_id)))
            except PayloadSealed as error:
                run = replace(run, reason=why_sealed("the reason", error))
        return run

    def plain_attempt(self, run_id: RunId, attempt: Attempt) -> Attempt:
        """Never raises."""
        try:
            return self.read_attempt(run_id, attempt)
        except PayloadSealed as error:
            return replace(attempt, error=_as_failure(error), details=None, tokens=None)

    def read_attempt(self, run_id: RunId, attempt: Attempt) -> Attempt:
        try:
            return _each(self.decode_text, _by_field(_attempt_place(run_id, attempt)), attempt)
        except PayloadSealed as error:
            raise type(error)(f"attempt {attempt.number} of call {attempt.seq} cannot be read: {error}") from None

    def read_output(self, run_id: RunId, chain_id: RunId | None, output: Output) -> Output:
        if self.payloads.strict and output.value is None and output.error is None:
            raise PayloadDamaged(f"{output.kind} {output.name!r} cannot be read: it is empty")
        return _each(self._decode_output, _by_field(_output_place(run_id, chain_id, output)), output)

    def plain_answer(self, chain_id: RunId, output: Output) -> Output:
        """Never raises: the waiter gets the error."""
        try:
            return self.read_output(chain_id, chain_id, output)
        except PayloadSealed as error:
            return replace(output, value=None, error=_as_failure(error))

    def read_memo(self, run: Run) -> str:
        bound = self.payloads.bound(run.chain_id, "memo")
        return self.payloads.decode(run.memo, bound, (_to_id(run.id), "memo"), (f"debounced {run.name}", "memo"))

    def read_document(self, kind: str, document: Document) -> Document:
        return _each(self.decode_text, _only(document_place(kind, document.key)), document)

    # -- parts

    def _decode_output(self, text: str, place: Place) -> str:
        owner, kind, name, _, field = place
        return self.payloads.decode(text, self.payloads.bound(*place), (owner, kind, name, field))

    def is_current(self, record: Struct) -> bool:
        """Whether all payloads of a record are coded as new ones are."""
        return all(map(self.payloads.is_current, payloads_of(record).values()))

    def _plain_body(self, reader: Reader, message: Message, body: str) -> str:
        kind, payloads = message.kind, self.payloads
        if kind is MessageKind.START:
            run = reader.fact
            if run is None or started_by(message) != str(run.run_id):
                raise PayloadDamaged("it is the start of another run")
            old = (run.run_id, "start"), (f"debounced {run.name}", "start"), (run.run_id, "start", run.name)
            return payloads.decode(body, payloads.bound(*_start_place(run)), *old)
        place = _place_of(reader.chain_id, message)
        if kind in (MessageKind.CHILD, MessageKind.ACTIVITY):
            return payloads.decode(body, payloads.bound(*place), place)
        by_id, debounced = (_to_id(reader.id), *place[1:]), ("debounced", *place[1:])
        try:
            ours = _place_in_chain(reader.chain_id, reader.id, message)
            return payloads.decode(body, payloads.bound(*ours), place, by_id, debounced)
        except PayloadDamaged:
            try:
                return payloads.decode(body, payloads.bound(*by_id))
            except PayloadSealed:
                pass
            raise

    def _plain_memo(self, run: Run) -> str:
        try:
            return self.read_memo(run)
        except PayloadSealed as error:
            return json.encode(why_sealed("the memo", error)).decode()


def payloads_of(record: Struct) -> dict[str, str]:
    """The payloads that are set, by their fields."""
    fields = payload_fields(type(record))
    return {name: text for name in fields if (text := getattr(record, name)) is not None}


def _each(code: Code, places: Places, record: R) -> R:
    """The record with each of its payloads coded or decoded. The fields are those that its struct marks."""
    found = {
        name: code(text, place) for name, text in payloads_of(record).items() if (place := places(name)) is not None
    }
    return replace(record, **found) if found else record


# -- places


def _by_field(place: Place) -> Places:
    """Each field has the record's place and its own name."""
    return lambda name: (*place, name)


def _only(place: Place) -> Places:
    """For a record with one payload."""
    return lambda _: place


def _to_id(id: str) -> str:
    return f"id {id}"


def started_by(message: Message) -> str:
    """The run that a start message says it is for."""
    return message.message_id.removeprefix(_START)


def _place_of(to: RunId | str, message: Message) -> Place:
    """`to`: the chain or id that it goes to."""
    if message.kind in (MessageKind.CHILD, MessageKind.ACTIVITY):
        return message.name, message.kind.value, message.message_id
    return to, message.kind.value, message.name, message.message_id


def _place_in_chain(chain_id: RunId, id: str, message: Message) -> Place:
    """The sender names a run by its id: the row that has it may be another one's."""
    place = _place_of(chain_id, message)
    return place if message.kind in ANSWERS else (*place, id)


def _start_place(run: Fact) -> Place:
    return run.run_id, "start", run.identity


def _memo_place(chain_id: RunId, memo: str) -> Place | None:
    return None if memo == _NOTHING else (chain_id, "memo")


def _reason_place(run_id: RunId) -> Place:
    return run_id, "reason"


def _letter_place(run_id: RunId) -> Place:
    return run_id, "letter"


def _compensation_place(run_id: RunId, parent: RunId | None) -> Place:
    return run_id, "compensation", parent


def _output_place(run_id: RunId, chain_id: RunId | None, output: Output) -> Place:
    owner = chain_id if output.kind is OutputKind.ANSWER else run_id
    return owner, output.kind.value, output.name, output.ord


def _attempt_place(run_id: RunId, attempt: Attempt) -> Place:
    return run_id, "attempt", attempt.seq, attempt.number


def endpoint_place(id: str) -> Place:
    return (f"webhook {id}",)


def _key_place(key: StoredKey) -> Place:
    return "api key", key.id, key.name, key.scope, key.expires_at


def request_place(key: str) -> Place:
    return (f"request {key}",)


def document_place(kind: str, key: str) -> Place:
    return (f"document {kind} {key}",)


def _flow_places(flow: FlowRow) -> Places:
    """Whether it is active is not in it: the store makes flows inactive by itself."""
    published = flow.published_at is not None
    return _by_field((flow.workflow_id, "flow", flow.name, flow.version, flow.trigger_type, published))


def _event_places(event: EventRow) -> Places:
    return _by_field((event.event_id, "event", event.type, event.source, event.external_id, event.replay_of))


def _bus_places(message: NewMessage | Delivery) -> Places:
    return _only((f"message {message.topic}", message.id))


_PLACES: dict[type[Struct], Callable[[Any], Places]] = {
    ScheduleRow: lambda schedule: _by_field((f"schedule {schedule.id}",)),
    FlowRow: _flow_places,
    EventRow: _event_places,
    NewMessage: _bus_places,
    Delivery: _bus_places,
    StoredMessage: _bus_places,
    DeadLetter: lambda letter: _only(_letter_place(letter.run_id)),
    Partner: lambda endpoint: _only(endpoint_place(endpoint.name)),
    KeptRequest: lambda request: _only(request_place(request.key)),
}
"""Records that tell their place themselves."""


# -- the store's own writes


def quotes(state: RunState, reason: str) -> bool:
    """Whether this reason of a run that is in that state may quote a payload."""
    return bool(reason) and state in _TOLD and not reason.startswith(_SEALED)


def closed_by_store(entry: Entry) -> bool:
    """Whether the store may have written it itself, such as the end of a run that timed out."""
    return entry.kind in CLOSING_ENTRIES and not is_coded(entry.body)


def _refuse_more_than_a_reason(entry: Entry) -> None:
    """A store says why it closed a run, and nothing else."""
    try:
        body = _decode_body(entry.body)
        if body == Body(reason=body.reason):
            return
    except (DecodeError, RecursionError):
        pass
    raise PayloadDamaged("it is not encrypted, and says more than why the run was closed")


def never_plain(text: str) -> str:
    """A text that cannot pass as a readable one."""
    return text if is_coded(text) else join([], text.encode())


def _as_failure(error: PayloadSealed) -> str:
    kind = type(error)
    return json.encode(Failure(f"{kind.__module__}:{kind.__qualname__}", str(error), retryable=False)).decode()
