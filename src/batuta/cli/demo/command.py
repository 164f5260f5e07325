"""`batuta demo`: kill -9 in the middle of an order, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from batuta.cli.common.lazy import FAILED, OK
from batuta.cli.common.options import console, json_option, opened, print_json
from batuta.cli.common.redaction import say
from batuta.cli.demo import orders
from batuta.cli.demo.judge import Step, answered_keys, disagreements, steps_of
from batuta.cli.demo.ledger import Event
from batuta.cli.demo.stage import NAMESPACE, ORDERS, Stage
from batuta.client import Batuta
from batuta.clock import SystemClock
from batuta.connect import store_for
from batuta.errors import BatutaError

if TYPE_CHECKING:
    from batuta.cli.demo.show import Show
    from batuta.verify import Report

_LONGEST = 60.0
_LOOK = 0.03


class DemoFailed(BatutaError):
    """The demo did not come to its end."""


class Outcome(Struct):
    """The result of one demo."""

    steps: list[Step]
    endings: dict[str, str]
    problems: list[str]
    """Where the ledger and the journals do not agree."""
    report: Report


@click.command()
@click.option("--keep", is_flag=True, help="Keep the database, the ledger and the workers' logs.")
@json_option
def demo(keep: bool, as_json: bool) -> None:
    """Kill a worker in the middle of an order, and watch another one finish it.

    A worker process runs two orders on SQLite, in a temporary folder. The demo kills it (SIGKILL) while it packs, and
    starts another. A ledger outside the system records what was really done. Exits 0 only if it agrees with the
    journals and `batuta verify` finds nothing.
    """
    folder = Path(tempfile.mkdtemp(prefix="batuta-demo-"))
    try:
        good = asyncio.run(_play(folder, as_json))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if keep and not as_json:
        say(f"kept: batuta runs journal order-1001 --namespace demo --url sqlite:///{folder / 'demo.db'}")
    raise SystemExit(OK if good else FAILED)


async def _play(folder: Path, as_json: bool) -> bool:
    from batuta.cli.demo.show import Show

    stage = Stage(folder)
    out = console(stderr=as_json)
    show = Show(out, SystemClock())
    try:
        async with stage.client() as client:
            with show:
                before, answered = await _first_act(stage, client, show)
                await _second_act(stage, client, show)
            await stage.dismiss()
            outcome = await _reckon(stage, client, before, answered)
    finally:
        await stage.dismiss()
    good = not outcome.problems and outcome.report.holds and _as_expected(outcome.endings)
    _tell(out, show, outcome, good)
    if as_json:
        print_json(_document(outcome, good))
    return good


async def _first_act(stage: Stage, client: Batuta, show: Show) -> tuple[list[Event], set[str]]:
    """Orders come in, a worker begins, and is killed while it packs. Returns the ledger and the durable state then."""
    for id, order in ORDERS.items():
        await client.start("order", order, id=id)
    show.say(f"{len(ORDERS)} orders are in the database; worker 1 starts")
    worker = await stage.hire()

    async def packs() -> bool:
        return any(event.name == "pack" for event in stage.events())

    await _until(packs, stage, show)
    await asyncio.sleep(0.3)
    worker.kill()
    await worker.wait()
    show.update(stage.events())
    show.say("kill -9: worker 1 is dead, in the middle of packing", "bold red")
    return stage.events(), answered_keys(await stage.journals(client))


async def _second_act(stage: Stage, client: Batuta, show: Show) -> None:
    """Another worker starts, finds the orders, and finishes them."""
    show.say("worker 2 starts, without instructions")
    await stage.hire()
    await _until(lambda: stage.closed(client), stage, show)
    show.say("all orders have ended")


async def _until(condition: Callable[[], Any], stage: Stage, show: Show) -> None:
    """Show events until the condition holds."""
    try:
        async with asyncio.timeout(_LONGEST):
            while not await condition():
                if log := stage.crashed():
                    raise DemoFailed(f"a worker ended by itself; its log:\n{log}")
                show.update(stage.events())
                await asyncio.sleep(_LOOK)
    except TimeoutError:
        raise DemoFailed(f"the orders did not get on within {_LONGEST:.0f} s: run it again with --keep") from None
    show.update(stage.events())


async def _reckon(stage: Stage, client: Batuta, before: list[Event], answered: set[str]) -> Outcome:
    from batuta.verify import verify

    steps = steps_of(stage.events(), before, answered, await stage.journals(client))
    async with opened(store_for(stage.url, namespace=NAMESPACE)) as store:
        report = await verify(store, [orders.order])
    return Outcome(steps, await stage.endings(client), disagreements(steps), report)


def _as_expected(endings: dict[str, str]) -> bool:
    return endings["order-1001"].startswith("completed") and endings["order-1002"].startswith("failed: card")


def _tell(out: Any, show: Show, outcome: Outcome, good: bool) -> None:
    from batuta.cli.demo.show import steps_table

    for order, ending in outcome.endings.items():
        out.print()
        out.print(steps_table(outcome.steps, order, ending, show))
    out.print()
    for problem in outcome.problems:
        out.print(f"the ledger disagrees: {problem}", style="bold red")
    once = [step for step in outcome.steps if step.answered_before]
    twice = sum(len(step.pids) > 1 for step in once)
    again = sum(step.begun_before and not step.answered_before for step in outcome.steps)
    checks, found = sum(outcome.report.checked.values()), sum(outcome.report.found.values())
    out.print(f"{len(once)} activities were over before the kill: {twice} of them ran again. {again} were in flight.")
    out.print(f"batuta verify: {checks} checks, {found} violations.")
    verdict = "The ledger agrees with the journals." if good else "The demo failed: this should not happen."
    out.print(verdict, style="bold green" if good else "bold red")


def _document(outcome: Outcome, good: bool) -> dict[str, Any]:
    steps = [
        {"order": s.order, "activity": s.name, "key": s.key, "began": s.began, "finished": s.finished}
        | {"attempts": s.line.body.attempts if s.line else 0, "before_kill": s.answered_before}
        for s in outcome.steps
    ]
    return {"ok": good, "endings": outcome.endings, "problems": outcome.problems, "activities": steps}
