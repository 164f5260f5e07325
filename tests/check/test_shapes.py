"""Shapes: what may change without a gate, what may not, and what is told about it."""

from pathlib import Path
from typing import Any

import pytest

from batuta import InvalidInput, connect
from batuta.check import Check, Finding, compare, read_shapes, shapes_of, write_shapes
from batuta.check.shape_diff import lines
from batuta.testing import assert_replays, record

HEAD = """
import asyncio
from batuta import Signal, Update, activity, deprecate_patch, logger, patched, run_child, workflow

approve = Signal("approve", bool)
put = Update("put", int)

@activity
async def charge(order): ...
@activity(name="send-receipt")
async def receipt(order): ...
@activity
async def ship(order): ...

"""
ORDER = """
@workflow
async def order(order):
    done = [await charge(order)]
    await asyncio.sleep(3600)
    return [*done, await ship(order)]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "workflows.lock"


def checked(file: Path, source: str) -> Check:
    path = file.parent / "shop.py"
    path.write_text(HEAD + source)
    return Check([str(path)])


def shape(file: Path, source: str, code: str = "order") -> list[str]:
    return list(lines(shapes_of(checked(file, source))[code].shape))


def changed(file: Path, before: str, after: str) -> list[Finding]:
    write_shapes(file, shapes_of(checked(file, before)))
    return compare(file, read_shapes(file), shapes_of(checked(file, after)))


def codes(findings: list[Finding]) -> list[str]:
    return [one.code for one in findings]


def body(*statements: str, name: str = "order", version: str = "") -> str:
    return f"\n@workflow(version={version!r})\nasync def {name}(order):\n" + "".join(
        f"    {one}\n" for one in statements
    )


def test_a_shape_is_what_the_workflow_asks_for_in_order(file: Path) -> None:
    assert shape(file, ORDER) == ["activity charge", "timer", "activity ship"]


def test_a_shape_has_the_blocks_that_decide_about_commands(file: Path) -> None:
    source = '''
@workflow
async def order(order):
    """All of it."""
    @put.handle
    async def add(n: int) -> None:
        await charge(n)
    if order.total > 100:
        await approve.wait()
    elif not order.lines:
        return "nothing"
    for line in order.lines:
        await helper(line)
    try:
        async with asyncio.timeout(5):
            await asyncio.gather(*(ship(line) for line in order.lines))
    except TimeoutError:
        await run_child(other, order)

async def helper(line):
    await receipt(line)

@workflow(name="the other")
async def other(order): ...
'''
    assert shape(file, source) == [
        "on update put",
        "  activity charge",
        "if order.total > 100",
        "  signal approve",
        "else",
        "  if not order.lines",
        "    return",
        "for order.lines",
        "  activity send-receipt",
        "try",
        "  timer",
        "  for order.lines",
        "    activity ship, awaited later",
        "  gather",
        "except TimeoutError",
        "  child the other",
    ]


def test_comments_docstrings_formatting_logging_and_arguments_are_not_in_it(file: Path) -> None:
    after = '''
@workflow
async def order(
    order,  # the order
):
    """Charge, wait, ship."""
    logger.info("begins %s", order)
    done = [
        await charge(order.card, cents=order.total * 2),
    ]
    await asyncio.sleep(7200)
    shipped = await ship(order)
    return [*done, shipped]
'''
    assert changed(file, ORDER, after) == []


def test_a_part_that_moves_into_a_helper_is_no_change(file: Path) -> None:
    after = body("done = [await begin(order)]", "await asyncio.sleep(1)", "return [*done, await ship(order)]") + (
        "\nasync def begin(order):\n    return await charge(order)\n"
    )
    assert changed(file, ORDER, after) == []


@pytest.mark.parametrize(
    ("statements", "difference"),
    [
        (
            ("await charge(order)", "await receipt(order)", "await asyncio.sleep(1)", "await ship(order)"),
            ("+ activity send-receipt",),
        ),
        (("await charge(order)", "await ship(order)"), ("- timer",)),
        (
            ("await ship(order)", "await asyncio.sleep(1)", "await charge(order)"),
            ("- activity ship", "+ activity ship"),
        ),
        (
            ("if order: return", "await charge(order)", "await asyncio.sleep(1)", "await ship(order)"),
            ("+ if order", "+   return"),
        ),
    ],
)
def test_a_change_without_a_gate_is_named_with_what_differs(
    file: Path, statements: tuple[str, ...], difference: tuple[str, ...]
) -> None:
    (finding,) = changed(file, ORDER, body(*statements))
    assert (finding.code, finding.what) == ("W601", "workflow order")
    assert set(difference) <= set(finding.details)


def test_two_activities_at_once_instead_of_one_after_the_other_are_a_change(file: Path) -> None:
    before = body("await charge(order)", "await ship(order)")
    assert codes(changed(file, before, body("await asyncio.gather(charge(order), ship(order))"))) == ["W601"]


def test_a_change_in_a_helper_is_a_change_of_the_workflow(file: Path) -> None:
    helper = "\nasync def helper(order):\n    await {}(order)\n"
    flow = body("await helper(order)")
    assert codes(changed(file, flow + helper.format("charge"), flow + helper.format("ship"))) == ["W601"]


BEFORE = body("await charge(order)", "await ship(order)")


GATED = [
    ("await charge(order)", "if patched('r'): await receipt(order)", "await ship(order)"),
    ("await charge(order)", "if patched('r') and order: await receipt(order)", "await ship(order)"),
    ("new = patched('r')", "await charge(order)", "if new: await receipt(order)", "await ship(order)"),
    ("await charge(order)", "if not patched('r'): return await ship(order)", "await receipt(order)"),
    ("if patched('r'): return await receipt(order)", "await charge(order)", "await ship(order)"),
    ("await charge(order)", "await receipt(order) if patched('r') else await ship(order)"),
    ("await charge(order)", "while patched('r') and order: await receipt(order)", "await ship(order)"),
]


@pytest.mark.parametrize("statements", GATED)
def test_a_change_behind_a_patch_is_gated(file: Path, statements: tuple[str, ...]) -> None:
    assert codes(changed(file, BEFORE, body(*statements))) == ["W603"]


UNGATED = [
    ("if patched('r'): await receipt(order)", "await ship(order)"),
    ("await charge(order)", "if patched('r'): await receipt(order)", "await receipt(order)"),
    ("await charge(order)", "if not patched('r'): await receipt(order)", "await ship(order)"),
    ("await charge(order)", "if patched('r') or order: await receipt(order)", "await ship(order)"),
]


@pytest.mark.parametrize("statements", UNGATED)
def test_a_patch_does_not_excuse_changes_outside_of_it(file: Path, statements: tuple[str, ...]) -> None:
    assert codes(changed(file, BEFORE, body(*statements))) == ["W601"]


def built(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(HEAD + source, names)
    return names


@pytest.fixture
async def journal(tmp_path: Path) -> Path:
    """Of a run that was completed by the code before the change."""
    old = built(BEFORE)
    client = connect("memory://")
    async with client, client.worker(workflows=[old["order"]], activities=[old["charge"], old["ship"]]):
        handle = await client.start(old["order"], "o-1")
        await handle.result()
        return await record(handle, tmp_path / "journal.json")


@pytest.mark.parametrize("statements", GATED)
def test_a_gated_call_replays(statements: tuple[str, ...], journal: Path) -> None:
    assert assert_replays(built(body(*statements))["order"], journal) == 1


@pytest.mark.parametrize("statements", UNGATED)
def test_an_ungated_call_does_not_replay(statements: tuple[str, ...], journal: Path) -> None:
    with pytest.raises(AssertionError, match="not replayed by this code"):
        assert_replays(built(body(*statements))["order"], journal)


def test_the_life_of_a_patch_is_gated_from_its_beginning_to_its_end(file: Path) -> None:
    patch = body("await charge(order)", "if patched('r'): await receipt(order)", "await ship(order)")
    deprecated = body("await charge(order)", "deprecate_patch('r')", "await receipt(order)", "await ship(order)")
    gone = body("await charge(order)", "await receipt(order)", "await ship(order)")
    assert codes(changed(file, BEFORE, patch)) == ["W603"]
    assert codes(changed(file, patch, deprecated)) == ["W603"]
    assert codes(changed(file, deprecated, gone)) == ["W603"]
    assert codes(changed(file, patch, gone)) == ["W601"]
    assert codes(changed(file, patch, BEFORE)) == ["W601"]


def test_a_new_version_is_a_gate(file: Path) -> None:
    other = body("await receipt(order)", version="2")
    assert codes(changed(file, body("await charge(order)", version="1"), other)) == ["W603", "W603"]
    assert codes(changed(file, ORDER, ORDER + other)) == ["W603"]


def test_a_workflow_that_is_gone_is_told(file: Path) -> None:
    (gone, new) = changed(file, ORDER, ORDER.replace("def order(", "def purchase("))
    assert (new.code, new.what) == ("W602", "workflow order")
    assert (gone.code, gone.what) == ("W603", "workflow purchase is new")


def test_namesakes_are_told_apart(file: Path) -> None:
    twins = body("await ship(order)") + body("await charge(order)") + ORDER.replace("def order(", "def other(")
    twins = twins.replace("@workflow(version='')", "@workflow(name='twin')").replace("def order(", "def one(", 1)
    assert list(shapes_of(checked(file, twins))) == ["twin (shop.one)", "twin (shop.order)", "other"]
    same = ORDER + ORDER
    assert list(shapes_of(checked(file, same))) == ["order (shop.order)", "order (shop.order) 2"]


def test_helpers_that_call_themselves_or_each_other_many_times_have_a_shape(file: Path) -> None:
    many = "".join(
        f"async def h{n}(x):\n    await h{n + 1}(x)\n    await h{n + 1}(x)\n    await h{n + 1}(x)\n" for n in range(40)
    )
    source = body("await h0(order)", "await again(order)") + many
    source += "async def h40(x):\n    await charge(x)\nasync def again(x):\n    await charge(x)\n    await again(x)\n"
    found = shape(file, source)
    assert found[-2:] == ["activity charge", "again again"]
    assert len(found) < 2_000
    other = source.replace("h40(x):\n    await charge", "h40(x):\n    await ship")
    assert codes(changed(file, source, other)) == ["W601"]


def test_every_example_and_recorded_workflow_has_a_shape_that_survives_the_file(file: Path) -> None:
    root = Path(__file__).parents[2]
    shapes = shapes_of(Check([str(root / "examples"), str(root / "tests" / "replay"), str(root / "tests" / "check")]))
    write_shapes(file, shapes)
    assert len(shapes) > 40
    assert compare(file, read_shapes(file), shapes) == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"workflows": {"a": {"digest": "x"}}}',
        '{"workflows": {"a": {"digest": "x", "shape": [{"if": "1 +"}]}}}',
        '{"batuta": 2, "workflows": {}}',
    ],
)
def test_a_file_that_is_none_of_shapes_is_refused(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(InvalidInput):
        read_shapes(file)


def test_a_file_that_is_not_there_says_how_to_make_it(file: Path) -> None:
    with pytest.raises(InvalidInput, match="--update"):
        read_shapes(file)
