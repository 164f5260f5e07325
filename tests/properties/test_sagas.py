"""Sagas of any shape, against a model: what is undone, in which order, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from batuta import Failed, NonRetryable, Retry, RunFailed, RunNotCompleted, activity, saga, workflow
from batuta.testing import Environment, run
from batuta.testing.stores import AnyStoreName

Program = list[Any]
"""Of: ("do", refuses), ("fail",), ("all", count), ("saga", program), ("try", program), ("nap",)."""

leaf = st.one_of(
    st.tuples(st.just("do"), st.booleans()),
    st.tuples(st.just("all"), st.integers(1, 3)),
    st.just(("fail",)),
    st.just(("nap",)),
)
programs = st.recursive(
    st.lists(leaf, max_size=4),
    lambda inner: st.lists(
        st.one_of(leaf, st.tuples(st.just("saga"), inner), st.tuples(st.just("try"), inner)), max_size=4
    ),
    max_leaves=10,
)


class Model:
    """What a program does: the steps that were done, and the order in which they are undone."""

    def __init__(self) -> None:
        self.numbers = count(1)
        self.done: list[int] = []
        self.undone: list[int] = []
        self.refused: list[int] = []

    def saga(self, program: Program) -> list[tuple[int, bool]]:
        """Its compensations, when it ends well. Raises Failed when it does not."""
        registered: list[tuple[int, bool]] = []
        try:
            for op, *more in program:
                match op:
                    case "do":
                        self.step(registered, refuses=more[0])
                    case "all":
                        for _ in range(more[0]):
                            self.step(registered)
                    case "fail":
                        raise Failed("as the program says")
                    case "saga":
                        registered += self.saga(more[0])
                    case "try":
                        try:
                            registered += self.saga(more[0])
                        except Failed:
                            pass
        except Failed:
            for number, refuses in reversed(registered):
                (self.refused if refuses else self.undone).append(number)
            raise
        return registered

    def step(self, registered: list[tuple[int, bool]], *, refuses: bool = False) -> None:
        number = next(self.numbers)
        self.done.append(number)
        registered.append((number, refuses))


class World:
    """The same, for real."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.undone: list[int] = []
        self.refused: list[int] = []

    def activities(self) -> list[Any]:
        @activity(name="undo", retry=Retry(attempts=2, first=0.001))
        async def undo(number: int, refuses: bool) -> None:
            if refuses:
                if number not in self.refused:
                    self.refused.append(number)
                raise NonRetryable("never")
            self.undone.append(number)

        @activity(name="do", compensate=undo)
        async def do(number: int, refuses: bool) -> None:
            self.done.append(number)

        return [do, undo]


def perform(do: Any, program: Program, numbers: Iterator[int]) -> Any:
    async def body(program: Program) -> None:
        async with saga():
            for op, *more in program:
                match op:
                    case "do":
                        await do(next(numbers), more[0])
                    case "all":
                        await asyncio.gather(*(do(next(numbers), False) for _ in range(more[0])))
                    case "fail":
                        raise Failed("as the program says")
                    case "nap":
                        await asyncio.sleep(0.001)
                    case "saga":
                        await body(more[0])
                    case "try":
                        try:
                            await body(more[0])
                        except Failed:
                            pass

    return body(program)


async def one(env: Environment, workflow_: Any, program: Program, world: World, *, crash: bool) -> None:
    handle = await env.start(workflow_, program)
    if crash:
        await env.crash()
    model = Model()
    try:
        model.saga(program)
        ends_well = True
    except Failed:
        ends_well = False
    try:
        await handle.result()
        completed = True
    except RunFailed:
        completed = False
    assert completed is ends_well
    assert sorted(set(world.done)) == model.done
    if not crash:
        assert world.undone == model.undone
    assert set(world.undone) == set(model.undone)
    assert set(world.refused) == set(model.refused)


def check(store: AnyStoreName, given_programs: Sequence[Program], *, crash: bool) -> None:
    async def all_of_them() -> None:
        for program in given_programs:
            world = World()
            do, undo = world.activities()

            @workflow(name="any")
            async def any_saga(program: Program) -> None:
                numbers = count(1)
                await perform(do, program, numbers)  # noqa: B023 - used within the turn of the loop

            async with Environment(workflows=[any_saga], activities=[do, undo], store=store) as env:
                await one(env, any_saga, program, world, crash=crash)

    run(all_of_them())


@settings(max_examples=60, deadline=None, database=None)
@given(programs, st.booleans())
def test_any_saga_is_undone_as_the_model_says(program: Program, crash: bool) -> None:
    check("memory", [program], crash=crash)


FIXED: list[Program] = [
    [("do", False), ("do", True), ("all", 3), ("fail",)],
    [
        ("do", False),
        ("try", [("do", False), ("saga", [("do", False)]), ("fail",)]),
        ("saga", [("do", True)]),
        ("fail",),
    ],
    [("saga", [("all", 2)]), ("nap",), ("do", False)],
]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_the_databases_do_the_same(store: AnyStoreName) -> None:
    if store == "sqlite":
        check(store, FIXED, crash=True)
    check(store, FIXED, crash=False)


def test_the_model_knows_what_it_says() -> None:
    model = Model()
    with pytest.raises(Failed):
        model.saga(FIXED[1])
    assert (model.done, model.undone, model.refused) == ([1, 2, 3, 4], [3, 2, 1], [4])
    assert issubclass(RunFailed, RunNotCompleted)
