"""Workflows whose activities beat, are completed from outside, or are executed elsewhere. Journals of them are in
tests/journals."""

import asyncio
from dataclasses import dataclass
from typing import Any

from batuta import (
    ActivityTimeout,
    CompleteLater,
    Handle,
    InvalidInput,
    Retry,
    Workflow,
    activity,
    activity_info,
    heartbeat,
    workflow,
)
from batuta.engine.machine.routing import RoutedCall
from batuta.testing import Environment

QUICK = Retry(attempts=2, first=1, jitter=0)
tokens: list[str] = []


@dataclass
class Verdict:
    """What a person says."""

    approved: bool
    by: str


@activity(retry=QUICK, heartbeat=5)
async def copies(pages: int) -> list[int]:
    begun = activity_info().details or 0
    for page in range(begun, pages):
        heartbeat(page + 1)
        if page == 2 and activity_info().attempt == 1:
            await asyncio.sleep(60)
    return [begun, pages]


@activity(retry=QUICK)
async def ask(order: str) -> Verdict:
    tokens.append(activity_info().token)
    raise CompleteLater


@activity(queue="gpu", retry=QUICK)
async def render(scene: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    if activity_info().attempt == 1:
        raise ConnectionError("reset")
    return f"{scene}.png"


@workflow
async def beating() -> list[int]:
    return await copies(5)


@workflow
async def asking(order: str) -> str:
    try:
        verdict = await ask.with_options(timeout=3600)(order)
    except (ActivityTimeout, InvalidInput, ConnectionError) as error:
        return type(error).__name__
    return f"{verdict.approved} by {verdict.by}"


@workflow
async def filming(limit: float) -> list[str]:
    async def one(scene: str, seconds: float, **options: Any) -> str:
        try:
            async with asyncio.timeout(limit):
                return await render.with_options(**options)(scene, seconds)
        except ActivityTimeout as error:
            return error.kind
        except TimeoutError:
            return "cancelled"

    first = await one("dawn", 1.0)
    return [first, *await asyncio.gather(one("noon", 2.0), one("dusk", 1000.0), one("night", 9.0, timeout=5))]


ALL: list[Workflow[..., Any]] = [beating, asking, filming]
ACTIVITIES = [copies, ask, render]
ROUTED: list[Workflow[..., Any]] = [RoutedCall(render)]
QUEUES = ["default", "gpu"]


# -- what happens to them


async def beats(env: Environment) -> Handle[Any]:
    return await env.start(beating)


async def _asked(env: Environment, order: str) -> Handle[Any]:
    tokens.clear()
    handle = await env.start(asking, order)
    await env.settle()
    return handle


async def completed_from_outside(env: Environment) -> Handle[Any]:
    handle = await _asked(env, "o-1")
    await env.client.heartbeat(tokens[0], {"seen": True})
    await env.client.complete(tokens[0], Verdict(True, "Ada"))
    return handle


async def failed_from_outside(env: Environment) -> Handle[Any]:
    handle = await _asked(env, "o-2")
    await env.client.fail(tokens[0], ConnectionError("no paper"))
    await env.advance(2)
    await env.client.fail(tokens[1], ConnectionError("no ink"))
    return handle


async def misfit_from_outside(env: Environment) -> Handle[Any]:
    handle = await _asked(env, "o-3")
    await env.client.complete(tokens[0], "yes")
    return handle


async def never_answered(env: Environment) -> Handle[Any]:
    return await _asked(env, "o-4")


async def routed(env: Environment) -> Handle[Any]:
    return await env.start(filming, 100.0)


async def routed_call(env: Environment) -> Handle[Any]:
    """The run of the activity itself."""
    await (await env.start(filming, 100.0)).result()
    runs = (await env.client.list(kind="activity", state="completed")).runs
    return await env.client.get(runs[-1].id)


SCENARIOS = {
    "beats": beats,
    "completed_from_outside": completed_from_outside,
    "failed_from_outside": failed_from_outside,
    "misfit_from_outside": misfit_from_outside,
    "never_answered": never_answered,
    "routed": routed,
    "routed_call": routed_call,
}
