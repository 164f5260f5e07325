"""Payloads that are written otherwise: when keys are changed."""

from __future__ import annotations

from msgspec.structs import replace

from batuta.clock import SECOND
from batuta.ids import new_run_id
from batuta.journal.bus.messages import NewMessage
from batuta.journal.flows.records import EventRow, NewEvent
from batuta.journal.records import (
    Attempt,
    Effects,
    LetterReason,
    Message,
    MessageKind,
    Move,
    NewLetter,
    Output,
    OutputKind,
)
from batuta.journal.reencryption import Rewrite
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, Pen, live_worker, new_run, signal, start_owned
from batuta.testing.conformance.runs.close import last_word

PUBLISHED, ANSWER = OutputKind.PUBLISHED, OutputKind.ANSWER
HOUR = 3600 * SECOND


async def full_run(store: Store, *, closed: bool = True) -> Pen:
    """A run with payloads in every place."""
    worker = await live_worker(store)
    pen = await start_owned(store, worker, memo='"old"')
    for name in ("one", "two"):
        await store.send(pen.run_id, signal(name, '"old"'))
    outputs = [Output(kind=kind, name="x", ord=1, at=5, value='"old"') for kind in (PUBLISHED, ANSWER)]
    letter = NewLetter(reason=LetterReason.REFUSED, error="E", message="old", fingerprint="f")
    assert (
        await pen.write(
            store,
            worker,
            2,
            consumed=["one", "two"],
            attempts=[Attempt(seq=1, number=1, started_at=1, ended_at=2, error='"old"', details='"old"', tokens="old")],
            effects=Effects(outputs=outputs, letter=letter if closed else None),
            move=Move(RunState.FAILED, reason="old") if closed else None,
        )
        is None
    )
    return pen


async def rewritten(store: Store, pen: Pen) -> Rewrite:
    """The same rows, with other texts."""
    return Rewrite(
        run_id=pen.run_id,
        entries=[replace(entry, body='"new"', crc=7) for entry in (await store.journal(pen.run_id))[1:]],
        attempts=[replace(one, error='"new"', details=None, tokens="new") for one in await store.attempts(pen.run_id)],
        outputs=[
            replace(one, value=None, error='"new"')
            for one in (*await store.outputs(pen.run_id), *await store.answers_of(pen.run_id))
        ],
        messages=[replace(one, body='"new"') for one in await store.inbox(pen.run_id)],
        memo='"new"',
        reason="new",
        letter="new",
    )


class RewritingConformance:
    """The same payloads, written otherwise, of runs that are closed."""

    async def test_all_messages_of_a_chain_can_be_read_by_id(self, store: Store, make_store: MakeStore) -> None:
        pen = await full_run(store)
        found = [one for one in await store.inbox(pen.run_id) if one.kind is MessageKind.SIGNAL]
        assert [(one.message_id, one.body) for one in found] == [("one", '"old"'), ("two", '"old"')]
        assert [one.message_id for one in await store.inbox(pen.run_id, "one", 1)] == ["two"]
        assert await store.inbox(pen.run_id, "two") == []
        assert await (await make_store(namespace="other")).inbox(pen.run_id) == []

    async def test_all_answers_of_a_chain_can_be_read(self, store: Store, make_store: MakeStore) -> None:
        pen = await full_run(store)
        assert [(one.kind, one.name, one.value) for one in await store.answers_of(pen.run_id)] == [
            (ANSWER, "x", '"old"')
        ]
        assert await store.answers_of(pen.run_id, "x") == []
        assert await (await make_store(namespace="other")).answers_of(pen.run_id) == []

    async def test_every_text_of_a_closed_run_can_be_written_otherwise(self, store: Store) -> None:
        pen, other = await full_run(store), await full_run(store)
        before = await store.journal(pen.run_id)
        assert await store.rewrite(await rewritten(store, pen))
        run, entries = await store.get_run(pen.run_id), await store.journal(pen.run_id)
        assert (run.memo, run.reason, run.state, run.head) == ('"new"', "new", RunState.FAILED, 2)
        assert entries == [before[0], *(replace(entry, body='"new"', crc=7) for entry in before[1:])]
        assert [(one.error, one.details, one.tokens) for one in await store.attempts(pen.run_id)] == [
            ('"new"', None, "new")
        ]
        for found in (await store.outputs(pen.run_id), await store.answers_of(pen.run_id)):
            assert [(one.value, one.error) for one in found] == [(None, '"new"')]
        assert {one.body for one in await store.inbox(pen.run_id)} == {'"new"'}
        assert (await store.letter(pen.run_id)).message == "new"
        assert "new" not in str(await rewritten_texts(store, other))

    async def test_what_is_not_named_stays(self, store: Store) -> None:
        pen = await full_run(store)
        before = await rewritten_texts(store, pen)
        assert await store.rewrite(Rewrite(run_id=pen.run_id))
        assert await rewritten_texts(store, pen) == before

    async def test_what_is_not_there_is_not_made(self, store: Store) -> None:
        pen = await full_run(store)
        before = await rewritten_texts(store, pen)
        made = Rewrite(
            run_id=pen.run_id,
            entries=[replace((await store.journal(pen.run_id))[0], ord=99)],
            attempts=[Attempt(seq=9, number=9, started_at=1)],
            outputs=[Output(kind=kind, name="y", ord=1, at=5, value="1") for kind in (PUBLISHED, ANSWER)],
            messages=[Message(message_id="unserved", kind=MessageKind.SIGNAL, body="1")],
        )
        assert await store.rewrite(made)
        assert await rewritten_texts(store, pen) == before

    async def test_an_open_run_is_left_alone(self, store: Store, make_store: MakeStore) -> None:
        pen = await full_run(store, closed=False)
        before = await rewritten_texts(store, pen)
        assert not await store.rewrite(await rewritten(store, pen))
        assert await rewritten_texts(store, pen) == before
        assert not await store.rewrite(Rewrite(run_id=new_run_id(), memo="1"))
        closed = await full_run(store)
        assert not await (await make_store(namespace="other")).rewrite(Rewrite(run_id=closed.run_id, memo="1"))
        assert (await store.get_run(closed.run_id)).memo == '"old"'

    async def test_a_start_that_nobody_has_read_can_be_written_otherwise(self, store: Store) -> None:
        run = new_run()
        await store.start(run)
        assert await store.close_run(run.run_id, -1, last_word(Pen(run.run_id, 0)), RunState.TERMINATED, "enough")
        [message] = await store.inbox(run.run_id)
        assert (message.message_id, message.body) == (f"start:{run.run_id}", run.start)
        message.body = '{"value":["otherwise"]}'
        assert await store.rewrite(Rewrite(run_id=run.run_id, messages=[message]))
        assert [m.body for m in await store.inbox(run.run_id)] == ['{"value":["otherwise"]}']

    async def test_payloads_of_events_are_written_otherwise_and_nothing_else_of_them(self, store: Store) -> None:
        one, other = (EventRow(event_id=new_run_id(), type="paid", source="shop", payload='"old"') for _ in range(2))
        first, second = await store.accept_events([NewEvent(event=one), NewEvent(event=other)])
        gone = replace(one, event_id=new_run_id())
        await store.rewrite_events([replace(event, payload='"new"', type="other") for event in (one, gone)])
        assert await store.event(one.event_id) == replace(first.event, payload='"new"')
        assert await store.event(other.event_id) == second.event
        assert await store.event(gone.event_id) is None

    async def test_bodies_of_messages_are_written_otherwise_and_nothing_else_of_them(self, store: Store) -> None:
        await store.publish_messages([NewMessage(topic="orders", id=id, body='"old"') for id in "ab"])
        second, first = await store.messages("orders")
        await store.rewrite_messages({first.number: '"new"', second.number + 1_000: '"new"'})
        assert await store.messages("orders") == [second, replace(first, body='"new"')]
        await store.rewrite_messages({})

    async def test_a_document_is_written_otherwise_only_where_it_is_still_what_was_read(self, store: Store) -> None:
        await store.put_documents("k", {"a": "1", "b": "1"}, HOUR)
        store.shift_clock(60)
        assert await store.rewrite_document("k", "a", "1", "2")
        assert not await store.rewrite_document("k", "a", "1", "3")
        assert not await store.rewrite_document("k", "c", "1", "3")
        assert not await store.rewrite_document("other", "b", "1", "3")
        first, other = await store.document("k", "a"), await store.document("k", "b")
        assert first is not None
        assert other is not None
        assert (first.body, other.body) == ("2", "1")
        assert first.created_at == other.created_at
        assert first.age >= 60 * SECOND  # it was not written anew
        store.shift_clock(3600)
        assert not await store.rewrite_document("k", "a", "2", "3")


async def rewritten_texts(store: Store, pen: Pen) -> list[object]:
    """All that `rewrite` could change."""
    run = await store.get_run(pen.run_id)
    return [
        (run.memo, run.reason, run.head),
        await store.journal(pen.run_id),
        await store.attempts(pen.run_id),
        await store.outputs(pen.run_id),
        await store.answers_of(pen.run_id),
        await store.inbox(pen.run_id),
    ]
