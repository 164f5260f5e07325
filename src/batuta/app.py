"""The parts of a worker as one value, so that a command can start a worker from a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from batuta.authoring.client.schedules import Schedule
from batuta.authoring.definitions import Activity, Workflow
from batuta.authoring.jobs import Job
from batuta.authoring.middleware import Middleware
from batuta.authoring.queues import Queue
from batuta.bus.subscriptions import Subscription
from batuta.errors import InvalidInput
from batuta.journal.dead_letters import DeadLetter
from batuta.journal.retention import Retention

if TYPE_CHECKING:
    from batuta.flows.workflow import Flows

A = TypeVar("A", bound=Activity[..., Any])


class App(Struct, frozen=True, kw_only=True):
    """Workflows, activities, jobs and schedules that belong together, for `batuta worker --app MODULE:ATTR`.

    `activities` and `jobs` are decorated functions, or instances with decorated methods. `queues` are names, or
    `Queue(...)` with limits. `retention` says how long closed runs are kept. It registers nothing; it is a list.
    """

    workflows: Sequence[Workflow[..., Any]] = ()
    activities: Sequence[object] = ()
    jobs: Sequence[object] = ()
    queues: Sequence[str | Queue] = ("default",)
    schedules: Sequence[Schedule] = ()
    on_dead_letter: Callable[[DeadLetter], Any] | None = None
    """Called with each dead letter that the worker makes."""
    retention: Sequence[Retention] = ()
    middleware: Sequence[Middleware] = ()
    subscriptions: Sequence[Subscription] = ()
    """Subscriptions to topics of the bus, made with `batuta.bus.subscribe`."""
    webhooks: bool = False
    """It delivers webhooks."""
    flows: bool | Flows = False
    """It runs flows: True, or a `batuta.flows.workflow.Flows` with options."""

    @classmethod
    def of_module(cls, module: ModuleType) -> App:
        """All workflows, activities, jobs, schedules and subscriptions at the top level of a module, its own and
        imported ones.

        Raises InvalidInput when there are none. Activities that are methods need an instance: make an App of it.
        """
        found = {id(value): value for value in vars(module).values() if isinstance(value, Workflow | Activity)}
        workflows = [value for value in found.values() if isinstance(value, Workflow)]
        activities = [value for value in found.values() if isinstance(value, Activity) and not isinstance(value, Job)]
        jobs = [value for value in found.values() if isinstance(value, Job)]
        subscriptions = {id(value): value for value in vars(module).values() if isinstance(value, Subscription)}
        if not found and not subscriptions:
            raise InvalidInput(
                f"module {module.__name__!r} has no @workflow, @activity, @job or subscription at its top: "
                f"name another module, or MODULE:ATTR where ATTR is a batuta.App"
            )
        schedules = {id(value): value for value in vars(module).values() if isinstance(value, Schedule)}
        return cls(
            workflows=workflows,
            activities=_without_twins(activities),
            jobs=_without_twins(jobs),
            schedules=list(schedules.values()),
            subscriptions=list(subscriptions.values()),
        )


def _without_twins(activities: Sequence[A]) -> list[A]:
    """`slow = charge.with_options(...)` is the same activity under another variable."""
    first: dict[tuple[str, object], A] = {}
    for activity in activities:
        first.setdefault((activity.name, activity.fn), activity)
    return list(first.values())
