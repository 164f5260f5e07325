"""Batuta: business processes that survive anything, written as plain asyncio code."""

from __future__ import annotations

from batuta.app import App
from batuta.authoring.attempt import CompleteLater, activity_info, heartbeat
from batuta.authoring.context import call, info, logger, now, random, side_effect, uuid
from batuta.authoring.definitions import Activity, Workflow, activity, workflow
from batuta.authoring.handle import Handle
from batuta.authoring.options import ActivityOptions
from batuta.authoring.retry import Retry
from batuta.client import Batuta
from batuta.connect import connect
from batuta.errors import (
    ActivityCancelled,
    ActivityError,
    ActivityFailed,
    ActivityTimeout,
    AlreadyStarted,
    BatutaError,
    Interrupted,
    InvalidInput,
    InvalidToken,
    LostAttempt,
    NonRetryable,
    RunCancelled,
    RunClosed,
    RunFailed,
    RunNotCompleted,
    RunTerminated,
    RunTimedOut,
    TokenUsed,
    UnknownRun,
)
from batuta.journal.states import RunState

__version__ = "0.1.0"

__all__ = [
    "Activity",
    "ActivityCancelled",
    "ActivityError",
    "ActivityFailed",
    "ActivityOptions",
    "ActivityTimeout",
    "AlreadyStarted",
    "App",
    "Batuta",
    "BatutaError",
    "CompleteLater",
    "Handle",
    "Interrupted",
    "InvalidInput",
    "InvalidToken",
    "LostAttempt",
    "NonRetryable",
    "Retry",
    "RunCancelled",
    "RunClosed",
    "RunFailed",
    "RunNotCompleted",
    "RunState",
    "RunTerminated",
    "RunTimedOut",
    "TokenUsed",
    "UnknownRun",
    "Workflow",
    "activity",
    "activity_info",
    "call",
    "connect",
    "heartbeat",
    "info",
    "logger",
    "now",
    "random",
    "side_effect",
    "uuid",
    "workflow",
]
