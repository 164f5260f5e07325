"""The audit log: every act once, with what it changed or not at all, in a chain that shows what was changed by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batuta.errors import RunClosed
from batuta.journal.audit import Act, ActFilter, Recorded, Verb, first_break, state_json
from batuta.journal.entries import Body, EntryKind, encode_entry
from batuta.journal.queues import QueueLimits
from batuta.journal.records import Message, MessageKind, Move
from batuta.journal.schedules import ScheduleRow
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, live_worker, new_run, start_owned


def act(verb: Verb = Verb.CANCEL, **said: Any) -> Act:
    return Act(**({"actor": "ada@desk", "verb": verb} | said))


def cancel(message_id: str = "cancel:1") -> Message:
    return Message(message_id=message_id, kind=MessageKind.CANCEL)


async def log_of(store: Store) -> list[Recorded]:
    """All rows, of which the chain holds."""
    rows = await store.audit()
    assert first_break(store.namespace, (0, ""), rows) is None
    assert await store.audit_head() == ((rows[-1].number, rows[-1].hash) if rows else (0, ""))
    return rows


class AuditConformance:
    """The records of the audit log, and how they are chained."""

    async def test_nothing_is_recorded_without_an_act(self, store: Store) -> None:
        run, _ = await store.start(new_run())
        await store.send(run.run_id, cancel())
        await store.pause_queue("default", True)
        assert await log_of(store) == []

    async def test_a_cancel_is_recorded_with_who_and_why(self, store: Store) -> None:
        run, _ = await store.start(new_run("order-1"))
        before = await store.now()
        assert await store.send(run.run_id, cancel(), act(reason='they said "no"', detail='{"é":"\\n"}'))
        [row] = await log_of(store)
        assert (row.number, row.actor, row.verb, row.target) == (1, "ada@desk", "cancel", "order-1")
        assert (row.run_id, row.reason, row.detail) == (str(run.run_id), 'they said "no"', '{"é":"\\n"}')
        assert row.before == row.after == state_json("pending")
        assert row.at >= before

    async def test_what_changes_nothing_is_not_recorded(self, store: Store) -> None:
        run, _ = await store.start(new_run())
        assert await store.send(run.run_id, cancel(), act())
        assert not await store.send(run.run_id, cancel(), act())
        assert not await store.unpark(run.run_id, act(Verb.RETRY))
        assert not await store.delete_schedule("none", act(Verb.DELETE_SCHEDULE))
        assert len(await log_of(store)) == 1

    async def test_what_is_refused_is_not_recorded(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        with pytest.raises(RunClosed):
            await store.send(pen.run_id, cancel(), act())
        assert await log_of(store) == []

    async def test_a_close_is_recorded_with_both_states(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "order-2")
        assert pen.last is not None
        last = encode_entry(1, EntryKind.TERMINATED, pen.last.at, Body(reason="r"), pen.last.crc)
        assert not await store.close_run(pen.run_id, 7, last, RunState.TERMINATED, "r", act(Verb.TERMINATE))
        assert await store.close_run(pen.run_id, 0, last, RunState.TERMINATED, "r", act(Verb.TERMINATE))
        [row] = await log_of(store)
        assert (row.verb, row.target) == ("terminate", "order-2")
        assert (row.before, row.after) == (state_json("running"), state_json("terminated"))

    async def test_a_run_that_is_tried_again_is_recorded(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, reason="?", fingerprint="v1"))
        assert await store.unpark(pen.run_id, act(Verb.RETRY))
        [row] = await log_of(store)
        assert (row.before, row.after) == (state_json("needs_code"), state_json("waiting"))

    async def test_queues_and_schedules_are_recorded_by_name(self, store: Store) -> None:
        await store.pause_queue("mail", True, "no", act(Verb.PAUSE_QUEUE, before="1", after="2"))
        await store.limit_queue("mail", QueueLimits(concurrency=2), act=act(Verb.LIMIT_QUEUE))
        schedule = ScheduleRow(id="nightly", spec="{}")
        assert await store.put_schedule(schedule, act=act(Verb.PUT_SCHEDULE))
        assert not await store.put_schedule(schedule, act=act(Verb.PUT_SCHEDULE))
        found = (await store.schedule("nightly")).schedule
        assert await store.put_schedule(schedule, found.revision, act=act(Verb.PAUSE_SCHEDULE))
        assert await store.delete_schedule("nightly", act(Verb.DELETE_SCHEDULE))
        rows = await log_of(store)
        assert [(row.verb, row.target, row.run_id) for row in rows] == [
            ("pause queue", "mail", ""),
            ("limit queue", "mail", ""),
            ("put schedule", "nightly", ""),
            ("pause schedule", "nightly", ""),
            ("delete schedule", "nightly", ""),
        ]
        assert (rows[0].before, rows[0].after, rows[1].before) == ("1", "2", "null")

    async def test_any_text_keeps_the_chain(self, store: Store) -> None:
        texts = ["", "\x01\x1f\x7f\x80", '"\\/\b\f\n\r\t', "\u2028\u2029é漢😀", "</script>"]
        for text in texts:
            await store.pause_queue(text or "q", True, "", act(Verb.PAUSE_QUEUE, actor=text, reason=text, detail=text))
        rows = await log_of(store)
        assert [row.reason for row in rows] == texts

    async def test_those_who_act_at_the_same_time_leave_no_gap(self, store: Store, make_store: MakeStore) -> None:
        stores = [store, await make_store(), await make_store()]
        await asyncio.gather(
            *(
                stores[number % 3].pause_queue(f"q{number}", True, "", act(Verb.PAUSE_QUEUE, reason=str(number)))
                for number in range(30)
            )
        )
        assert len(await log_of(store)) == 30

    async def test_each_namespace_has_a_log_of_its_own(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store("other")
        await store.pause_queue("q", True, "", act(Verb.PAUSE_QUEUE))
        await other.pause_queue("q", True, "", act(Verb.PAUSE_QUEUE))
        [mine], [theirs] = await log_of(store), await log_of(other)
        assert mine.number == theirs.number == 1
        assert first_break("default", (0, ""), [theirs]) is not None

    async def test_it_is_read_in_order_from_any_number_on(self, store: Store) -> None:
        for number in range(5):
            await store.pause_queue(f"q{number}", True, "", act(Verb.PAUSE_QUEUE))
        assert [row.number for row in await store.audit(2)] == [3, 4, 5]
        assert [row.number for row in await store.audit(2, 2)] == [3, 4]
        assert first_break(store.namespace, (2, (await store.audit(1, 1))[0].hash), await store.audit(2)) is None

    async def test_it_is_listed_newest_first_by_who_what_and_when(self, store: Store) -> None:
        for number in range(4):
            actor = "ada" if number % 2 else "bob"
            await store.pause_queue(f"q{number // 2}", True, "", act(Verb.PAUSE_QUEUE, actor=actor))
        await store.limit_queue("q1", QueueLimits(), act=act(Verb.LIMIT_QUEUE, actor="ada"))
        rows = await log_of(store)

        async def found(before: int | None = None, limit: int = 50, **where: Any) -> list[int]:
            return [row.number for row in await store.acts(ActFilter(**where), before, limit)]

        assert await found() == [5, 4, 3, 2, 1]
        assert await found(before=4, limit=2) == [3, 2]
        assert await found(target="q1") == [5, 4, 3]
        assert await found(before=5, target="q1") == [4, 3]
        assert await found(actor="ada") == [5, 4, 2]
        assert await found(actor="ada", target="q1", verb="limit queue") == [5]
        assert await found(since=rows[-1].at + 1) == []
        assert await found(until=rows[0].at) == []
        assert await found(since=rows[0].at, until=rows[-1].at + 1) == [5, 4, 3, 2, 1]
