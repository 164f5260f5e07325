"""Arguments and results pass through JSON and come back as their annotated types, live and in replay."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from batuta import Activity, activity, workflow
from tests.engine.kit import journal_of, replay, world


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Line:
    sku: str
    price: Decimal
    quantity: int = 1


@dataclass(frozen=True)
class Order:
    id: UUID
    lines: list[Line]
    placed: datetime
    colour: Colour | None = None
    notes: dict[str, str] = field(default_factory=dict)


class Receipt(msgspec.Struct):
    number: int
    paid: Decimal
    raw: bytes = b""


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]


class Person(pydantic.BaseModel):
    name: str
    born: date
    friends: list["Person"] = []


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict, total=False):
    fast: bool
    limit: int


MOMENT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ORDER = Order(
    id=UUID(int=5),
    lines=[Line("tea", Decimal("3.50"), 2), Line("cup", Decimal("1e-7"))],
    placed=MOMENT,
    colour=Colour.RED,
    notes={"gift": "yes", "unicode": "ação 🎼"},
)
SAMPLES: list[tuple[Any, Any]] = [
    (int, 2**53 + 1),
    (int, -(2**63)),
    (int, 10**40),
    (float, 0.1),
    (str, 'quotes " and \\ and \n and \x1f and 🎼'),
    (bool, True),
    (None, None),
    (bytes, b"\x00\xff\x10"),
    (Decimal, Decimal("12345678901234567890.123456789")),
    (datetime, MOMENT),
    (datetime, datetime(2030, 1, 2, tzinfo=timezone(timedelta(hours=-3)))),
    (datetime, datetime(2030, 1, 2)),  # noqa: DTZ001 - naive is allowed, and stays naive
    (date, date(2030, 2, 28)),
    (time, time(23, 59, 59, 5)),
    (timedelta, timedelta(days=-1, microseconds=7)),
    (UUID, UUID(int=2**127 + 9)),
    (Colour, Colour.BLUE),
    (Level, Level.HIGH),
    (Literal["a", "b"], "b"),
    (Optional[int], None),  # noqa: UP045 - the old spelling works, too
    (int | str | None, "7"),
    (int | str | None, 7),
    (Line, Line("tea", Decimal("1.10"))),
    (Order, ORDER),
    (Order | None, ORDER),
    (Line | Receipt, Receipt(7, Decimal("3.2"), b"\x01")),
    (Line | Receipt, Line("tea", Decimal("1.10"))),
    (Cat | Dog, Dog(["sit", "roll"])),
    (Person, Person(name="Ana", born=date(1990, 5, 6), friends=[Person(name="Rui", born=date(1991, 1, 1))])),
    (Person | None, None),
    (list[Person], [Person(name="Ana", born=date(1990, 5, 6))]),
    (dict[str, Line], {"a": Line("tea", Decimal("1.10"))}),
    (dict[int, str], {1: "x", -5: "y"}),
    (tuple[int, str], (1, "x")),
    (tuple[Decimal, ...], (Decimal(1), Decimal("2.5"))),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset({"a", "b"})),
    (Sequence[int], [1, 2]),
    (Point, Point(1, 2)),
    (Options, {"fast": True}),
    (Annotated[int, msgspec.Meta(ge=0)], 5),
    (Any, {"nested": [1, 2.5, None, True, {"deep": "er"}]}),
]


NAMES = [f"{number}-{getattr(kind, '__name__', str(kind))}" for number, (kind, _) in enumerate(SAMPLES)]


def pass_on(kind: Any) -> Activity[..., Any]:
    """An activity that gives back what it was given, typed."""

    async def give_back(value: Any) -> Any:
        assert type(value) is not msgspec.Raw
        return value

    give_back.__annotations__ = {"value": kind, "return": kind}
    return activity(give_back)


@pytest.mark.parametrize(("kind", "value"), SAMPLES, ids=NAMES)
async def test_a_value_survives_arguments_results_and_replay(kind: Any, value: Any) -> None:  # covers B-01
    give_back = pass_on(kind)
    seen: list[Any] = []

    async def relays(given: Any) -> Any:
        got = await give_back(given)
        seen.append((given, got))
        return got

    relays.__annotations__ = {"given": kind, "return": kind}
    relays_ = workflow(relays)
    async with world(relays_, give_back) as env:
        handle = await env.start(relays_, value)
        result = await handle.result()
        assert result == value
        assert type(result) is type(value)
        replay(relays_, await journal_of(env, handle)).tear_down()
        assert all(given == got == value and type(got) is type(value) for given, got in seen)
        again = await env.client.get(handle.id, relays_)
        assert await again.result() == value


async def test_without_annotations_plain_json_comes_back() -> None:
    @activity
    async def untyped(value):
        return value

    @workflow
    async def relays(value):
        return await untyped(value)

    async with world(relays, untyped) as env:
        assert await env.run(relays, (1, Decimal("1.5"), Line("a", Decimal(1)))) == [
            1,
            "1.5",
            {"sku": "a", "price": "1", "quantity": 1},
        ]


async def test_a_result_asked_for_by_id_alone_is_plain_json() -> None:
    @workflow
    async def gives() -> Line:
        return Line("tea", Decimal("1.10"))

    async with world(gives) as env:
        handle = await env.start(gives, id="x")
        assert await handle.result() == Line("tea", Decimal("1.10"))
        assert await (await env.client.get("x")).result() == {"sku": "tea", "price": "1.10", "quantity": 1}


async def test_default_arguments_are_those_of_the_code_that_runs() -> None:
    @workflow
    async def greets(name: str = "world", *, loud: bool = False) -> str:
        return name.upper() if loud else name

    async with world(greets) as env:
        assert await env.run(greets) == "world"
        assert await env.run(greets, "you") == "you"


async def test_more_fields_than_known_are_ignored_so_that_types_can_grow() -> None:
    @workflow
    async def takes(line: Line) -> str:
        return line.sku

    async with world(takes) as env:
        handle = await env.client.start("takes", {"sku": "tea", "price": "1", "colour": "green"})
        assert await handle.result() == "tea"
