"""Blocks that run at the same time: their compensations and rescues; and long lists that runs of their own do."""

from typing import Any

import pytest

from batuta.flows.interpreter import LONG_LIST
from batuta.flows.rehearsal import rehearse
from batuta.flows.workflow import Flows
from batuta.testing import in_virtual_time
from tests.flows.kit import DONE, Doc, check_steps, ran, rule, step


def undo(key: str, body: Any, **more: Any) -> dict[str, Any]:
    return step(key, "compensate", actionType="publish", topic="undo", body=body, **more)


async def undone(steps: Doc, payload: dict[str, Any] | None = None) -> list[Any]:
    """The bodies of the compensations, in their order."""
    told: list[Any] = []

    async def publish(_topic: str, body: Any, /, *, key: str, id: str, type: str) -> None:
        told.append(body)

    await ran(steps, payload, Flows(publish=publish))
    return told


BRANCHES = [
    [
        step(
            "first",
            "try",
            steps=[step("a1", "delay", seconds=2), undo("a", "a"), step("a2", "delay", seconds=2), step("no", "fail")],
        )
    ],
    [step("second", "try", steps=[step("b1", "delay", seconds=1), undo("b", "b"), step("b2", "delay", seconds=9)])],
]


@in_virtual_time
async def test_a_block_that_fails_undoes_its_own_steps_and_not_those_beside_it() -> None:
    assert await undone([step("both", "parallel", branches=BRANCHES), DONE]) == ["a"]


async def test_a_rehearsal_of_blocks_beside_each_other_undoes_their_own_steps() -> None:
    checked, faults = check_steps([step("both", "parallel", branches=BRANCHES), DONE])
    assert checked is not None, faults
    assert (await rehearse(checked, {})).undone == ["a"]


@in_virtual_time
async def test_a_rescue_sees_its_own_error_when_a_block_beside_it_fails_meanwhile() -> None:
    def branch(name: str, seconds: float) -> Doc:
        body = [step(f"{name}1", "delay", seconds=seconds), step(f"{name}2", "fail", message=name)]
        rescue = [
            step(f"{name}3", "delay", seconds=5),
            step(f"{name}4", "set", values={name: "{{ context.error.message }}"}),
        ]
        return [step(name, "try", steps=body, catch=rescue)]

    found = await ran([step("both", "parallel", branches=[branch("a", 1), branch("b", 2)]), DONE])
    assert (found.run.context["a"], found.run.context["b"]) == ("a", "b")


@in_virtual_time
async def test_a_rescue_reads_the_error_that_it_has_written() -> None:
    rescue = [
        step("own", "set", values={"error": "mine"}),
        step("inner", "parallel", branches=[[step("a", "set", values={"seen": "{{ context.error }}"})]]),
    ]
    found = await ran([step("block", "try", steps=[step("no", "fail")], catch=rescue), DONE])
    assert (found.run.context["seen"], found.run.context["error"]) == ("mine", "mine")


@pytest.mark.parametrize("after", ["in the list", "later"])
@in_virtual_time
async def test_a_long_list_is_undone_the_last_item_first(after: str) -> None:
    items = list(range(LONG_LIST + 5))
    fails = step("no", "fail", when=rule("context.item", "eq", items[-1]))
    inner = [undo("u", "{{ context.item }}"), *([fails] if after == "in the list" else ())]
    steps = [
        undo("before", "before"),
        step("all", "for_each", items="{{ event.payload.items }}", concurrency=1, steps=inner),
        step("end", "fail"),
        DONE,
    ]
    assert await undone(steps, {"items": items}) == [*items[::-1], "before"]
