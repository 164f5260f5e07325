"""Pydantic models as arguments and results, through every store."""

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator

from batuta import InvalidInput, Retry, RunFailed, RunState, activity, workflow
from batuta.errors import NotSerialisable
from batuta.serde import decoder_for, encode
from tests.engine.arena import PATIENCE, Arena, until_state
from tests.engine.kit import replay_all


class Colour(Enum):
    RED = "red"


class Line(BaseModel):
    model_config = ConfigDict(frozen=True)

    sku: str
    price: Decimal = Field(gt=0)


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: str


class Pix(BaseModel):
    kind: Literal["pix"] = "pix"
    key: UUID


Payment = Annotated[Card | Pix, Field(discriminator="kind")]


class Order(BaseModel):
    """Strict, with an alias, a set, a union and models at every depth."""

    model_config = ConfigDict(strict=True)

    order_id: int = Field(alias="orderId")
    at: datetime
    lines: list[Line]
    payment: Payment
    colours: set[Colour] = set()
    words: frozenset[str] = frozenset()
    gifts: dict[str, Line | None] = {}
    parent: "Order | None" = None
    ratio: float | None = None


class Names(RootModel[list[str]]):
    pass


class Receipt(BaseModel):
    order: Order
    total: Decimal

    @field_validator("total")
    @classmethod
    def _positive(cls, value: Decimal) -> Decimal:
        if value < 0:
            raise ValueError("a total is not negative")
        return value


def an_order(**more: Any) -> Order:
    line = Line(sku="tea", price=Decimal("1.10"))
    values: dict[str, Any] = {
        "orderId": 7,
        "at": datetime(2020, 1, 2, tzinfo=UTC),
        "lines": [line, line],
        "payment": Pix(key=UUID(int=5)),
        "colours": {Colour.RED},
        "words": frozenset({"c", "a", "b"}),
        "gifts": {"x": line, "y": None},
    }
    return Order(**(values | more))


@activity(retry=Retry(attempts=1))
async def add_up(order: Order, extra: Line | None = None) -> Receipt:
    assert isinstance(order, Order)
    assert all(isinstance(line, Line) for line in order.lines)
    lines = [*order.lines, extra] if extra is not None else order.lines
    return Receipt(order=order, total=sum((line.price for line in lines), Decimal(0)))


@activity
def relay(names: Names, payments: list[Card | Pix], by_name: dict[str, Line]) -> tuple[Names, list[Payment], Line]:
    return names, payments, by_name["tea"]


@activity(retry=Retry(attempts=1))
async def lie() -> Receipt:
    return Receipt.model_construct(order=an_order(), total=Decimal(-1))


@workflow
async def buy(order: Order, *, extra: Line | None = None) -> Receipt:
    names, payments, line = await relay(Names(["a"]), [order.payment, Card(number="1")], {"tea": order.lines[0]})
    assert (type(names), [type(one) for one in payments], type(line)) == (Names, [Pix, Card], Line)
    return await add_up(order, extra=extra)


@workflow
async def is_lied_to() -> Receipt:
    return await lie()


EVERYTHING = (buy, is_lied_to, add_up, relay, lie)


async def test_models_go_in_and_come_out_as_they_were(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, *EVERYTHING)
    order = an_order(parent=an_order())
    receipt = await (await client.start(buy, order, id="x")).result(PATIENCE)
    assert receipt == Receipt(order=order, total=Decimal("2.20"))
    assert isinstance(receipt.order.parent, Order)
    assert await (await other.get("x", buy)).result(PATIENCE) == receipt
    await replay_all(arena.store(client), {"buy": buy})


async def test_a_run_started_by_name_takes_json_by_alias_or_by_field_name(arena: Arena) -> None:
    client, starter = await arena.client(), await arena.client()
    await arena.worker(client, *EVERYTHING)
    by_name = an_order().model_dump(mode="json")
    by_alias = an_order().model_dump(mode="json", by_alias=True)
    for value in (by_name, by_alias):
        await (handle := await starter.start("buy", value)).result(PATIENCE)
        assert (await (await starter.get(handle.id, buy)).result()).order == an_order()


async def test_an_argument_that_does_not_fit_is_refused_with_the_field(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    bad = an_order().model_dump(mode="json") | {"lines": [{"sku": "tea", "price": "-1"}]}
    with pytest.raises(InvalidInput, match=r"(?s)input of workflow 'buy'.*lines\.0\.price.*greater than 0"):
        await client.start(buy, bad)  # type: ignore[arg-type]  # that is what is tested
    assert await client.count() == 0


async def test_an_argument_that_is_found_not_to_fit_later_parks_the_run_with_the_field(arena: Arena) -> None:
    client, starter = await arena.client(), await arena.client()
    handle = await starter.start("buy", {"orderId": "seven"})
    await arena.worker(client, *EVERYTHING)
    await until_state(handle, RunState.NEEDS_CODE)
    reason = (await handle.describe()).reason
    assert "orderId" in reason
    assert "valid integer" in reason


async def test_a_result_that_is_not_valid_is_an_error_in_the_workflow(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    with pytest.raises(RunFailed, match="a total is not negative"):
        await (await client.start(is_lied_to)).result(PATIENCE)


def test_a_number_that_json_does_not_have_is_refused_inside_models_too() -> None:
    with pytest.raises(NotSerialisable, match="NaN or infinity"):
        encode(an_order(ratio=float("nan")))
    with pytest.raises(NotSerialisable, match="NaN or infinity"):
        encode([an_order(parent=an_order(ratio=float("inf")))])


def test_sets_in_models_have_one_order_in_every_process() -> None:
    program = (
        "from batuta.serde import encode\nfrom tests.engine.test_pydantic import an_order\n"
        "words = frozenset(map(str, range(50)))\n"
        "print(encode([an_order(words=words, parent=an_order(words=words)), {'x': an_order(words=words)}]).decode())"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=45,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list[Card | Pix], [Pix(key=UUID(int=1)), Card(number="1")]),
        (dict[str, Payment], {"a": Card(number="1")}),
        (tuple[Names, Card | None], (Names(["a"]), None)),
        (Card | Pix, Pix(key=UUID(int=1))),
        (Names, Names(["a", "b"])),
        (Order, an_order()),
    ],
    ids=["list of two", "tagged", "tuple", "two", "root", "model"],
)
def test_every_annotation_with_models_reads_what_was_written(annotation: Any, value: Any) -> None:
    assert decoder_for(annotation, "it").decode(encode(value)) == value
