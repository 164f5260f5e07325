"""Fields that hold payloads are marked on their records; one walker codes each of them at its own place."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from msgspec import Struct
from msgspec.structs import replace

import batuta.journal
from batuta.codecs import Encryption, Keys
from batuta.ids import new_run_id
from batuta.journal.bus.messages import Delivery, NewMessage, StoredMessage
from batuta.journal.codec_envelope import is_coded, payload_fields
from batuta.journal.dead_letters import open_letter
from batuta.journal.entries import Body, EntryKind, encode_entry
from batuta.journal.flows.records import EventRow, FlowRow
from batuta.journal.records import (
    Attempt,
    LetterReason,
    Message,
    MessageKind,
    Move,
    NewLetter,
    NewRun,
    Output,
    OutputKind,
    Run,
    RunKind,
    Successor,
)
from batuta.journal.resilience.partners import Partner
from batuta.journal.schedules import ScheduleRow
from batuta.journal.server.api_keys import StoredKey
from batuta.journal.server.documents import FLOW_SECRETS, Document
from batuta.journal.server.requests import KeptRequest
from batuta.journal.states import RunState
from batuta.stores.coded.payloads import Payloads
from batuta.stores.coded.record_codec import Reader, RecordCodec, document_place, payloads_of, request_place
from batuta.stores.coded.run_facts import fact_of

SECRET = '"who"'
RUN, PARENT = new_run_id(), new_run_id()
CODEC = RecordCodec(Payloads([Encryption(Keys.new("k1"))], "default"))
FACT = fact_of(NewRun(run_id=RUN, id="order-1", name="n"))
READER = Reader("order-1", RUN)
LETTER = NewLetter(reason=LetterReason.RAISED, error="E", message=SECRET, fingerprint="f")
STORED = StoredMessage(topic="t", id="1", body=SECRET, number=1, at=0, taken=False)
RUN_ROW: dict[str, Any] = dict.fromkeys(Run.__struct_fields__) | {
    "run_id": RUN,
    "chain_id": RUN,
    "id": "order-1",
    "name": "n",
}


class Case(NamedTuple):
    """A record whose marked fields all hold the secret, and how it is coded."""

    record: Struct
    code: Callable[[Any], Struct]
    read: Callable[[Any], Struct] | None = None
    """None: only a store reads it, as another record."""


def coded_run(run: Run) -> Run:
    """A store makes rows of runs from new runs and moves."""
    new = CODEC.new_run(NewRun(run_id=run.run_id, id=run.id, name=run.name, memo=run.memo))
    return replace(run, memo=new.memo, reason=CODEC.move(run.run_id, None, Move(run.state, reason=run.reason)).reason)


CASES = [
    Case(
        encode_entry(0, EntryKind.STARTED, 1, Body(reason=SECRET), 0),
        lambda one: CODEC.entry(FACT, one),
        lambda one: CODEC.plain_entry(FACT, one),
    ),
    Case(NewRun(run_id=RUN, id="1", name="n", start=SECRET, memo=SECRET), CODEC.new_run),
    Case(
        Successor(run_id=RUN, name="n", start=SECRET),
        lambda one: replace(one, start=CODEC.start_of(FACT, one.start)),
    ),
    Case(Move(RunState.FAILED, reason=SECRET, outcome=SECRET), lambda one: CODEC.move(RUN, PARENT, one)),
    Case(Run(**RUN_ROW | {"state": RunState.FAILED, "reason": SECRET, "memo": SECRET}), coded_run, CODEC.plain_run),
    Case(
        Message(message_id="1", kind=MessageKind.SIGNAL, name="n", body=SECRET),
        lambda one: CODEC.message(FACT, one),
        lambda one: CODEC.plain_message(READER, one),
    ),
    Case(
        Attempt(seq=1, number=1, started_at=0, error=SECRET, details=SECRET, tokens=SECRET),
        lambda one: CODEC.attempt(RUN, one),
        lambda one: CODEC.read_attempt(RUN, one),
    ),
    Case(
        Output(kind=OutputKind.PUBLISHED, name="n", ord=1, at=0, value=SECRET, error=SECRET),
        lambda one: CODEC.output(RUN, None, one),
        lambda one: CODEC.read_output(RUN, None, one),
    ),
    Case(LETTER, lambda one: CODEC.letter(RUN, one)),
    Case(
        open_letter(LETTER, 0, run_id=RUN, id="1", kind=RunKind.JOB, name="n", queue="q"),
        CODEC.encode,
        CODEC.read,
    ),
    Case(ScheduleRow(id="1", spec=SECRET), CODEC.encode, CODEC.read),
    Case(EventRow(event_id=UUID(int=1), type="t", source="s", payload=SECRET), CODEC.encode, CODEC.plain_event),
    Case(
        FlowRow(workflow_id=UUID(int=1), name="n", document=SECRET, description=SECRET), CODEC.encode, CODEC.plain_flow
    ),
    Case(NewMessage(topic="t", id="1", body=SECRET), CODEC.encode),
    Case(STORED, CODEC.encode, CODEC.plain_published),
    Case(
        Delivery(subscription="s", number=1, topic="t", id="1", key="", body=SECRET, at=0),
        CODEC.encode,
        CODEC.plain_published,
    ),
    Case(
        KeptRequest(key="k", digest="d", owner="o", locked_until=0, expires_at=0, answer=SECRET),
        lambda one: replace(one, answer=CODEC.encode_text(one.answer, request_place(one.key))),
        CODEC.read,
    ),
    Case(
        Document(key="k", body=SECRET, created_at=0, age=0),
        lambda one: replace(one, body=CODEC.encode_text(one.body, document_place(FLOW_SECRETS, one.key))),
        lambda one: CODEC.read_document(FLOW_SECRETS, one),
    ),
    Case(StoredKey(id="1", namespace="other", name="n", scope="admin", digest=SECRET), CODEC.api_key, CODEC.plain_key),
    Case(
        Partner(kind="webhook", name="n", doc=SECRET),
        CODEC.encode,
        CODEC.read,
    ),
]


def marked_records() -> set[type]:
    modules = pkgutil.walk_packages(batuta.journal.__path__, "batuta.journal.")
    kinds = [
        kind for one in modules for _, kind in inspect.getmembers(importlib.import_module(one.name), inspect.isclass)
    ]
    return {kind for kind in kinds if issubclass(kind, Struct) and payload_fields(kind)}


def test_every_record_with_a_marked_field_is_tried_here() -> None:
    assert {type(case.record) for case in CASES} == marked_records()


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.record).__name__)
def test_all_marked_fields_are_coded_and_come_back(case: Case) -> None:
    assert payloads_of(case.record).keys() == set(payload_fields(type(case.record)))
    coded = case.code(case.record)
    assert all(map(is_coded, payloads_of(coded).values()))
    assert CODEC.is_current(coded)
    assert not CODEC.is_current(case.record)
    if case.read is not None:
        assert case.read(coded) == case.record


@pytest.mark.parametrize("field", ["error", "details", "tokens"])
def test_a_payload_is_bound_to_its_field(field: str) -> None:
    coded = CODEC.attempt(RUN, Attempt(seq=1, number=1, started_at=0, **{field: SECRET}))  # type: ignore[arg-type]  # one of them
    assert [name for name, text in payloads_of(coded).items() if is_coded(text)] == [field]


def test_a_record_without_payloads_is_given_back_as_it_is() -> None:
    plain = Output(kind=OutputKind.PUBLISHED, name="n", ord=1, at=0)
    assert CODEC.output(RUN, None, plain) is plain


def test_a_reason_and_a_memo_that_hold_no_payload_stay_as_they_are() -> None:
    new = CODEC.new_run(NewRun(run_id=RUN, id="1", name="n"))
    moved = CODEC.move(RUN, None, waiting := Move(RunState.WAITING, reason="paused by hand"))
    assert new.memo == "null"
    assert moved is waiting
