"""Outputs: what a run publishes, and its answers to updates."""

from __future__ import annotations

from batuta.journal.records import Effects, IfExists, Move, Output, OutputKind, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, Pen, live_worker, new_run, start_owned

PUBLISHED, ANSWER = OutputKind.PUBLISHED, OutputKind.ANSWER


def output(
    name: str, value: str | None = None, kind: OutputKind = PUBLISHED, *, place: int = 1, error: str | None = None
) -> Output:
    return Output(kind=kind, name=name, ord=place, at=5, value=value, error=error)


class OutputsConformance:
    """Outputs are written with the turn that made them, and read by anybody."""

    async def test_what_a_run_publishes_can_be_read(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        made = [output("b", '{"ç":1}', place=1), output("a", "2"), output("c", error='{"type":"X","message":"no"}')]
        assert await pen.write(store, worker, effects=Effects(outputs=made)) is None
        assert await (await make_store()).outputs(pen.run_id) == sorted(made, key=lambda each: each.name)

    async def test_a_newer_value_takes_the_place_of_the_older(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        for number in (1, 2):
            await pen.write(store, worker, effects=Effects(outputs=[output("a", str(number), place=number)]))
        assert await store.outputs(pen.run_id) == [output("a", "2", place=2)]

    async def test_two_values_of_one_name_in_one_change(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 2, effects=Effects(outputs=[output("a", "1"), output("a", "2", place=2)]))
        assert await store.outputs(pen.run_id) == [output("a", "2", place=2)]

    async def test_outputs_belong_to_their_run(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        one, two = await start_owned(store, worker), await start_owned(store, worker)
        changes = [pen.change(1, effects=Effects(outputs=[output("a", str(n))])) for n, pen in enumerate((one, two))]
        assert await store.commit(worker.worker_id, changes) == {}
        assert [out.value for out in await store.outputs(one.run_id)] == ["0"]
        assert [out.value for out in await store.outputs(two.run_id)] == ["1"]
        assert await store.answers([(one.run_id, "a")]) == [None]
        assert await (await make_store(namespace="other")).answers([(one.run_id, "a")]) == [None]

    async def test_answers_are_found_by_chain_and_message(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        made = [output("u1", '"yes"', ANSWER), output("u2", error='{"type":"X","message":"no"}', kind=ANSWER)]
        assert await pen.write(store, worker, 0, effects=Effects(outputs=made)) is None
        asked = [(pen.run_id, "u2"), (new_run().run_id, "u1"), (pen.run_id, "u1"), (pen.run_id, "u3")]
        assert await store.answers(asked) == [made[1], None, made[0], None]
        assert await store.answers([]) == []
        assert await store.outputs(pen.run_id) == []

    async def test_a_follower_answers_for_its_chain(self, store: Store) -> None:
        worker = await live_worker(store)
        first = await start_owned(store, worker, "long")
        await first.write(store, worker, move=Move(RunState.CONTINUED))
        new = new_run("long", chain_id=first.run_id, if_exists=IfExists.RESTART)
        answer = output("u", "1", ANSWER)
        pen = Pen(new.run_id, epoch=1)
        assert await pen.write(store, worker, start=new, effects=Effects(outputs=[answer])) is None
        assert await store.answers([(first.run_id, "u"), (new.run_id, "u")]) == [answer, None]

    async def test_a_start_can_publish_and_end_at_once(self, store: Store) -> None:
        worker = await live_worker(store)
        new = new_run()
        effects = Effects(outputs=[output("a", "1"), output("u", "2", ANSWER)])
        assert (
            await Pen(new.run_id, 1).write(store, worker, 2, start=new, move=Move(RunState.COMPLETED), effects=effects)
            is None
        )
        assert [out.value for out in await store.outputs(new.run_id)] == ["1"]
        assert await store.answers([(new.run_id, "u")]) == [effects.outputs[1]]

    async def test_a_refused_change_leaves_no_output(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        zombie = Pen(pen.run_id, epoch=7, head=pen.head, last=pen.last)
        effects = Effects(outputs=[output("a", "1"), output("u", "1", ANSWER)])
        assert await zombie.write(store, worker, effects=effects) is Verdict.REFUSED
        assert await store.outputs(pen.run_id) == []
        assert await store.answers([(pen.run_id, "u")]) == [None]
