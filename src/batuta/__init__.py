"""Batuta: business processes that survive anything, written as plain asyncio code."""

from __future__ import annotations

from batuta.app import App
from batuta.authoring.attempt import CompleteLater, activity_info, heartbeat
from batuta.authoring.chains import continue_as_new, safe_point
from batuta.authoring.children import Child, run_child, send, start_child
from batuta.authoring.completed import as_completed
from batuta.authoring.context import call, info, logger, now, random, side_effect, uuid
from batuta.authoring.definitions import Activity, Workflow, activity, workflow
from batuta.authoring.handle import Handle
from batuta.authoring.messages import Query, Signal, Update, handlers_done, publish
from batuta.authoring.options import ActivityOptions
from batuta.authoring.patches import deprecate_patch, patched
from batuta.authoring.retry import Retry
from batuta.authoring.timers import cancel_timer, wait_for_timer
from batuta.client import Batuta
from batuta.connect import connect
from batuta.errors import (
    ActivityCancelled,
    ActivityError,
    ActivityFailed,
    ActivityTimeout,
    AlreadyStarted,
    BatutaError,
    ClientError,
    DuplicateTimer,
    Interrupted,
    InvalidInput,
    InvalidToken,
    LostAttempt,
    NonRetryable,
    NotParked,
    NotPublished,
    QueryFailed,
    RunCancelled,
    RunClosed,
    RunFailed,
    RunNotCompleted,
    RunTerminated,
    RunTimedOut,
    TokenUsed,
    UnknownQuery,
    UnknownRun,
    UpdateFailed,
    UpdateInterrupted,
    UpdateRejected,
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
    "Child",
    "ClientError",
    "CompleteLater",
    "DuplicateTimer",
    "Handle",
    "Interrupted",
    "InvalidInput",
    "InvalidToken",
    "LostAttempt",
    "NonRetryable",
    "NotParked",
    "NotPublished",
    "Query",
    "QueryFailed",
    "Retry",
    "RunCancelled",
    "RunClosed",
    "RunFailed",
    "RunNotCompleted",
    "RunState",
    "RunTerminated",
    "RunTimedOut",
    "Signal",
    "TokenUsed",
    "UnknownQuery",
    "UnknownRun",
    "Update",
    "UpdateFailed",
    "UpdateInterrupted",
    "UpdateRejected",
    "Workflow",
    "activity",
    "activity_info",
    "as_completed",
    "call",
    "cancel_timer",
    "connect",
    "continue_as_new",
    "deprecate_patch",
    "handlers_done",
    "heartbeat",
    "info",
    "logger",
    "now",
    "patched",
    "publish",
    "random",
    "run_child",
    "safe_point",
    "send",
    "side_effect",
    "start_child",
    "uuid",
    "wait_for_timer",
    "workflow",
]
