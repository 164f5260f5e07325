"""Batuta: business processes that survive anything, written as plain asyncio code."""

from __future__ import annotations

from batuta.app import App
from batuta.authoring.attempt import CompleteLater, activity_info, heartbeat
from batuta.authoring.calendar import cron, every, once
from batuta.authoring.chains import continue_as_new, safe_point
from batuta.authoring.checkpoints import BatchInfo, batch_info, checkpoint, last_checkpoint, progress
from batuta.authoring.children import Child, run_child, send, start_child
from batuta.authoring.completed import as_completed
from batuta.authoring.context import call, info, logger, now, random, side_effect, uuid
from batuta.authoring.deadletters import DeadLetter, DeadLetterGroup, Reprocessed
from batuta.authoring.definitions import Activity, Workflow, activity, workflow
from batuta.authoring.handle import Batch, Handle
from batuta.authoring.jobs import Job, JobCall, job
from batuta.authoring.logcontext import LogContext
from batuta.authoring.messages import Query, Signal, Update, handlers_done, publish
from batuta.authoring.middleware import ActivityCall, Middleware, RunCall, Sent, Start
from batuta.authoring.options import ActivityOptions
from batuta.authoring.patches import deprecate_patch, patched
from batuta.authoring.queues import Queue, QueueInfo, Rate
from batuta.authoring.quotas import Quota
from batuta.authoring.retention import Retention
from batuta.authoring.retry import Retry
from batuta.authoring.schedules import Overlap, Schedule, ScheduleView
from batuta.authoring.timers import cancel_timer, wait_for_timer
from batuta.authoring.transactions import Transaction, transaction
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
    InvalidFork,
    InvalidInput,
    InvalidSchedule,
    InvalidToken,
    LetterResolved,
    LostAttempt,
    MatchesEverything,
    NonRetryable,
    NothingMatches,
    NotParked,
    NotPublished,
    QueryFailed,
    QuotaExceeded,
    RunCancelled,
    RunClosed,
    RunFailed,
    RunMoved,
    RunNotCompleted,
    RunOpen,
    RunTerminated,
    RunTimedOut,
    ScheduleExists,
    TokenUsed,
    TransactionEnded,
    TransactionFailed,
    UnknownLetter,
    UnknownQuery,
    UnknownRun,
    UnknownSchedule,
    UpdateFailed,
    UpdateInterrupted,
    UpdateRejected,
    WrongTransaction,
)
from batuta.journal.states import RunState

__version__ = "0.1.0"

__all__ = [
    "Activity",
    "ActivityCall",
    "ActivityCancelled",
    "ActivityError",
    "ActivityFailed",
    "ActivityOptions",
    "ActivityTimeout",
    "AlreadyStarted",
    "App",
    "Batch",
    "BatchInfo",
    "Batuta",
    "BatutaError",
    "Child",
    "ClientError",
    "CompleteLater",
    "DeadLetter",
    "DeadLetterGroup",
    "DuplicateTimer",
    "Handle",
    "Interrupted",
    "InvalidFork",
    "InvalidInput",
    "InvalidSchedule",
    "InvalidToken",
    "Job",
    "JobCall",
    "LetterResolved",
    "LogContext",
    "LostAttempt",
    "MatchesEverything",
    "Middleware",
    "NonRetryable",
    "NotParked",
    "NotPublished",
    "NothingMatches",
    "Overlap",
    "Query",
    "QueryFailed",
    "Queue",
    "QueueInfo",
    "Quota",
    "QuotaExceeded",
    "Rate",
    "Reprocessed",
    "Retention",
    "Retry",
    "RunCall",
    "RunCancelled",
    "RunClosed",
    "RunFailed",
    "RunMoved",
    "RunNotCompleted",
    "RunOpen",
    "RunState",
    "RunTerminated",
    "RunTimedOut",
    "Schedule",
    "ScheduleExists",
    "ScheduleView",
    "Sent",
    "Signal",
    "Start",
    "TokenUsed",
    "Transaction",
    "TransactionEnded",
    "TransactionFailed",
    "UnknownLetter",
    "UnknownQuery",
    "UnknownRun",
    "UnknownSchedule",
    "Update",
    "UpdateFailed",
    "UpdateInterrupted",
    "UpdateRejected",
    "Workflow",
    "WrongTransaction",
    "activity",
    "activity_info",
    "as_completed",
    "batch_info",
    "call",
    "cancel_timer",
    "checkpoint",
    "connect",
    "continue_as_new",
    "cron",
    "deprecate_patch",
    "every",
    "handlers_done",
    "heartbeat",
    "info",
    "job",
    "last_checkpoint",
    "logger",
    "now",
    "once",
    "patched",
    "progress",
    "publish",
    "random",
    "run_child",
    "safe_point",
    "send",
    "side_effect",
    "start_child",
    "transaction",
    "uuid",
    "wait_for_timer",
    "workflow",
]
