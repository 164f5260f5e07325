"""Records the journals that are not there yet: `python -m tests.replay.record`. Those that are there never change."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from batuta import Handle, Retry, RunNotCompleted
from batuta.testing import Environment, run
from tests.replay import activity_workflows, error_workflows, operated, talkers
from tests.replay import workflows as w
from tests.replay.journals import FOLDER, Journal, portable, save

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
Scenario = Callable[[Environment], Awaitable[Handle[Any]]]


def plain(workflow: Any, *args: Any, **options: Any) -> Scenario:
    """Start it, and let it come to its end."""
    return lambda env: env.start(workflow, *args, **options)


def crashing(workflow: Any, *args: Any, **options: Any) -> Scenario:
    """Its worker dies every now and then."""

    async def happen(env: Environment) -> Handle[Any]:
        handle = await env.start(workflow, *args, **options)
        for _ in range(3):
            await env.advance(7)
            await env.crash()
        return handle

    return happen


def cancelled(workflow: Any) -> Scenario:
    async def happen(env: Environment) -> Handle[Any]:
        handle = await env.start(workflow)
        await env.advance(100)
        await handle.cancel("the shop is closed")
        return handle

    return happen


def terminated(workflow: Any) -> Scenario:
    async def happen(env: Environment) -> Handle[Any]:
        handle = await env.start(workflow)
        await env.advance(100)
        await handle.terminate("enough")
        return handle

    return happen


SCENARIOS: dict[str, Scenario] = {
    "order": plain(w.order, w.AN_ORDER),
    "fan_out": plain(w.fan_out, ["a", "b", "c", "d", "e"]),
    "group": plain(w.group),
    "races": plain(w.races),
    "limits": plain(w.limits),
    "waits_for": plain(w.waits_for),
    "waits_for_several": plain(w.waits_for_several),
    "naps": plain(w.naps),
    "pipeline": plain(w.pipeline),
    "pipeline_with_crashes": crashing(w.pipeline),
    "chance": plain(w.chance),
    "cleans_up_when_cancelled": cancelled(w.cleans_up),
    "sleeps": plain(w.sleeps),
    "sleeps_until_cancelled": cancelled(w.sleeps),
    "sleeps_until_terminated": terminated(w.sleeps),
    "sleeps_too_long": plain(w.sleeps, timeout=3600),
    "gives_up": plain(w.gives_up),
    "catches": plain(w.catches),
    "generators": plain(w.generators),
    "parent": plain(w.parent, id="id"),
    "parent_with_crashes": crashing(w.parent, id="id"),
    "parent_that_leaves": plain(w.parent_that_leaves, id="id"),
    "sends": plain(w.sends, id="id"),
    "goes_on": plain(w.goes_on, 2, []),
    "goes_on_by_itself": plain(w.goes_on_by_itself, 0),
    "tidies_up_and_goes_on": plain(w.tidies_up_and_goes_on, 0),
    "undoes": plain(w.undoes, True),
    "keeps_what_it_did": plain(w.undoes, False),
    "passes_a_safe_point": plain(w.passes_a_safe_point, 1),
    "tries_again": plain(w.tries_again, retry=Retry(attempts=3, jitter=0)),
    "changed": plain(w.changed),
    "named_timers": plain(w.named_timers),
    "in_order_of_completion": plain(w.in_order_of_completion),
    "meets_errors": plain(error_workflows.meets_errors),
    **talkers.SCENARIOS,
    **activity_workflows.SCENARIOS,
    **operated.SCENARIOS,
}


WORKFLOWS: dict[str, Any] = {
    workflow.name: workflow
    for workflow in (
        *w.ALL,
        *talkers.ALL,
        *activity_workflows.ALL,
        *activity_workflows.ROUTED,
        *operated.ALL,
        *error_workflows.ALL,
    )
}
"""What the recorded journals are of, those of routed activities included."""


async def record(name: str) -> Journal:
    workflows = [*w.ALL, *talkers.ALL, *activity_workflows.ALL, *operated.ALL, *error_workflows.ALL]
    activities = [*w.ACTIVITIES, *talkers.ACTIVITIES, *activity_workflows.ACTIVITIES, *operated.ACTIVITIES]
    activities += error_workflows.ACTIVITIES
    async with Environment(workflows=workflows, activities=activities, queues=activity_workflows.QUEUES) as env:
        handle = await SCENARIOS[name](env)
        try:
            await handle.result()
        except RunNotCompleted:
            pass
        found = await env.store.get_run(handle.run_id)  # of a chain, the first run
        entries = await env.store.journal(handle.run_id)
        return Journal(name, found.name, PYTHON, str(found.state), portable(entries))


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in SCENARIOS:
        if not (FOLDER / f"{name}.{PYTHON}.json").exists():
            save(run(record(name)))
            print("recorded", name)


if __name__ == "__main__":
    main()
