"""What workflows and jobs take, as JSON schemas made from their code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from batuta import Query, Signal, Update, job, workflow
from batuta.authoring import schemas
from batuta.authoring.schemas import CodeSchema, schema_of


@dataclass
class Item:
    sku: str
    count: int = 1


class Address(BaseModel):
    street: str


approve = Signal("approve", bool)
hurry = Signal("hurry")
add = Update("add", int)
move = Update("move")
total = Query("total", float)
unused = Signal("unused", int)


def receive_moves(log: list[Any]) -> None:
    def moved(to: Address, fast: bool = False) -> None:
        log.append(to)

    move.handle(moved)


@workflow(version="2")
async def basket(owner: str, first: Item | None = None, *, note: str = "") -> list[Item]:
    """Collects items.

    Until somebody approves."""
    items: list[Item] = [first] if first else []

    @add.handle(validator=lambda item, times=1: None)
    def put(item: Item, times: int = 1) -> int:
        items.extend([item] * times)
        return len(items)

    @total.handle
    def count() -> float:
        return float(len(items))

    receive_moves([])
    await hurry.wait()
    return items if await approve.wait() else []


@job
async def send(to: str, retries: int = 3) -> None:
    """Send a mail."""


def read(code: Any) -> CodeSchema:
    return msgspec.json.decode(schema_of(code), type=CodeSchema)


def test_the_input_of_a_workflow_is_described_by_its_parameters() -> None:
    found = read(basket)
    assert (found.name, found.version, found.kind, found.about) == ("basket", "2", "workflow", "Collects items.")
    assert found.input is not None
    owner, first = found.input
    assert (owner.name, owner.schema, owner.required) == ("owner", {"type": "string"}, True)
    assert (first.name, first.required, first.default) == ("first", False, None)
    assert first.schema["$defs"]["Item"]["properties"]["count"] == {"type": "integer", "default": 1}


def test_signals_updates_and_queries_are_those_that_the_code_names() -> None:
    found = read(basket)
    assert [(one.name, [p.schema for p in one.args or []]) for one in found.signals] == [
        ("approve", [{"type": "boolean"}]),
        ("hurry", []),
    ]
    added, moved = found.updates
    assert added.args is not None
    assert [(one.name, one.required, one.default) for one in added.args] == [("item", True, None), ("times", False, 1)]
    assert added.args[0].schema["$defs"]["Item"]["required"] == ["sku"]
    assert added.answer == {"type": "integer"}
    assert moved.args is not None
    assert moved.args[0].schema["properties"]["street"]["type"] == "string"
    assert (moved.args[1].default, moved.answer) == (False, None)
    assert [(one.name, one.args, one.answer) for one in found.queries] == [("total", [], {"type": "number"})]


def test_a_job_is_described_too() -> None:
    found = read(send)
    assert (found.kind, found.about, found.signals) == ("job", "Send a mail.", [])
    assert [(one.name, one.default) for one in found.input or []] == [("to", None), ("retries", 3)]


def test_a_description_that_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "LARGEST", 100)

    @workflow
    async def wide(a: str, b: str, c: str, d: str) -> None: ...

    found = read(wide)
    assert (found.name, found.input, found.signals) == ("wide", None, [])


def test_code_that_cannot_be_described_is_taken_to_take_anything() -> None:
    spare: dict[str, Any] = {}
    exec("async def made(x): return x", spare)
    found = read(workflow(spare["made"]))
    assert [(one.name, one.schema) for one in found.input or []] == [("x", {})]


def test_the_function_that_defines_an_update_describes_its_arguments_and_its_answer() -> None:
    @Update
    def rename(to: str, times: int = 2) -> bool: ...  # type: ignore[empty-body]

    @workflow
    async def named() -> None:
        rename.handle(print)

    [found] = read(named).updates
    assert found.args is not None
    assert [(one.name, one.schema, one.required) for one in found.args] == [
        ("to", {"type": "string"}, True),
        ("times", {"type": "integer"}, False),
    ]
    assert found.answer == {"type": "boolean"}
