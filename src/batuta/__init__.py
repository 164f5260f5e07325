"""Batuta: business processes that survive anything, written as plain asyncio code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batuta.app import App
from batuta.authoring.activity.attempt import BatchInfo, CompleteLater, activity_info, heartbeat
from batuta.authoring.activity.checkpoints import batch_info, checkpoint, last_checkpoint, progress
from batuta.authoring.activity.transactional import Transaction, transaction
from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.client.calendar import cron, every, once
from batuta.authoring.client.dead_letters import Reprocessed
from batuta.authoring.client.handle import Batch, Handle
from batuta.authoring.client.schedules import Overlap, Schedule, ScheduleView
from batuta.authoring.definitions import Activity, Workflow, activity, workflow
from batuta.authoring.gates import Gate, GateCall, Outcome, Refusal
from batuta.authoring.jobs import Job, JobCall, job
from batuta.authoring.log_context import LogContext
from batuta.authoring.middleware import ActivityCall, Middleware, RunCall, Sent, Start
from batuta.authoring.queues import Queue
from batuta.authoring.retry import Retry
from batuta.authoring.workflow.as_completed import as_completed
from batuta.authoring.workflow.children import Child, run_child, send, start_child
from batuta.authoring.workflow.context import call, info, logger, now, random, side_effect, uuid, wait_until
from batuta.authoring.workflow.continue_as_new import continue_as_new, safe_point
from batuta.authoring.workflow.messages import Query, Signal, Update, handlers_done, publish
from batuta.authoring.workflow.patches import deprecate_patch, patched
from batuta.authoring.workflow.sagas import saga
from batuta.authoring.workflow.timers import cancel_timer, wait_for_timer
from batuta.connect import connect
from batuta.errors import (
    ActivityCancelled,
    ActivityError,
    ActivityFailed,
    ActivityTimeout,
    AlreadyStarted,
    BatutaError,
    BreakerOpen,
    ClientError,
    CompensationFailed,
    DuplicateTimer,
    Failed,
    FlowConflict,
    GateFailed,
    GateRefused,
    Interrupted,
    InvalidFork,
    InvalidInput,
    InvalidSchedule,
    InvalidToken,
    LetterResolved,
    LimitReached,
    LostAttempt,
    MatchesEverything,
    NonRetryable,
    NothingMatches,
    NotParked,
    NotPublished,
    QueryFailed,
    QuotaExceeded,
    RetryLater,
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
    UnknownEvent,
    UnknownFlow,
    UnknownLetter,
    UnknownPartner,
    UnknownQuery,
    UnknownRun,
    UnknownSchedule,
    UpdateFailed,
    UpdateInterrupted,
    UpdateRejected,
    WrongTransaction,
    WrongWorkflow,
)
from batuta.journal.dead_letters import DeadLetter, DeadLetterGroup
from batuta.journal.queues import QueueInfo, Rate
from batuta.journal.quotas import Quota
from batuta.journal.retention import Retention
from batuta.journal.states import RunState
from batuta.printable import guard_loggers

if TYPE_CHECKING:
    from batuta.client import Batuta
else:

    def __getattr__(name: str) -> object:
        """The client is imported by its first use: modules that define workflows do without it."""
        if name != "Batuta":
            raise AttributeError(f"module 'batuta' has no attribute {name!r}")
        from batuta.client import Batuta

        return Batuta


__version__ = "0.1.0"
guard_loggers()

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
    "BreakerOpen",
    "Child",
    "ClientError",
    "CompensationFailed",
    "CompleteLater",
    "DeadLetter",
    "DeadLetterGroup",
    "DuplicateTimer",
    "Failed",
    "FlowConflict",
    "Gate",
    "GateCall",
    "GateFailed",
    "GateRefused",
    "Handle",
    "Interrupted",
    "InvalidFork",
    "InvalidInput",
    "InvalidSchedule",
    "InvalidToken",
    "Job",
    "JobCall",
    "LetterResolved",
    "LimitReached",
    "LogContext",
    "LostAttempt",
    "MatchesEverything",
    "Middleware",
    "NonRetryable",
    "NotParked",
    "NotPublished",
    "NothingMatches",
    "Outcome",
    "Overlap",
    "Query",
    "QueryFailed",
    "Queue",
    "QueueInfo",
    "Quota",
    "QuotaExceeded",
    "Rate",
    "Refusal",
    "Reprocessed",
    "Retention",
    "Retry",
    "RetryLater",
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
    "UnknownEvent",
    "UnknownFlow",
    "UnknownLetter",
    "UnknownPartner",
    "UnknownQuery",
    "UnknownRun",
    "UnknownSchedule",
    "Update",
    "UpdateFailed",
    "UpdateInterrupted",
    "UpdateRejected",
    "Workflow",
    "WrongTransaction",
    "WrongWorkflow",
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
    "saga",
    "send",
    "side_effect",
    "start_child",
    "transaction",
    "uuid",
    "wait_for_timer",
    "wait_until",
    "workflow",
]
