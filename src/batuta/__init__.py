"""Batuta: business processes that survive anything, written as plain asyncio code."""

from __future__ import annotations

from batuta.app import App
from batuta.authoring.context import activity_info, call, info, logger, now, random, side_effect, uuid
from batuta.authoring.definitions import Activity, Workflow, activity, workflow
from batuta.authoring.handle import Handle
from batuta.authoring.options import ActivityOptions
from batuta.authoring.retry import Retry
from batuta.client import Batuta
from batuta.connect import connect
from batuta.errors import (
    ActivityError,
    ActivityFailed,
    ActivityTimeout,
    AlreadyStarted,
    BatutaError,
    ClientError,
    Interrupted,
    InvalidInput,
    NonRetryable,
    NotParked,
    RunCancelled,
    RunClosed,
    RunFailed,
    RunNotCompleted,
    RunTerminated,
    RunTimedOut,
    UnknownRun,
)
from batuta.journal.states import RunState

__version__ = "0.1.0"

__all__ = [
    "Activity",
    "ActivityError",
    "ActivityFailed",
    "ActivityOptions",
    "ActivityTimeout",
    "AlreadyStarted",
    "App",
    "Batuta",
    "BatutaError",
    "ClientError",
    "Handle",
    "Interrupted",
    "InvalidInput",
    "NonRetryable",
    "NotParked",
    "Retry",
    "RunCancelled",
    "RunClosed",
    "RunFailed",
    "RunNotCompleted",
    "RunState",
    "RunTerminated",
    "RunTimedOut",
    "UnknownRun",
    "Workflow",
    "activity",
    "activity_info",
    "call",
    "connect",
    "info",
    "logger",
    "now",
    "random",
    "side_effect",
    "uuid",
    "workflow",
]
