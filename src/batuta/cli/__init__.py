"""The command `batuta`. Commands are loaded when they are called: `batuta --help` stays quick.

Data goes to stdout (a table, or one JSON document with --json), everything else to stderr.
"""

from __future__ import annotations

from batuta.cli.common.lazy import LazyGroup

EXIT_CODES = """\b
Exit codes:
  0  success
  1  the run did not complete or refused the request, or check, verify, replay or backup
     found a problem
  2  the command or its input is wrong
  3  the run, queue, schedule or dead letter does not exist
  4  the database cannot be used: unreachable, full, or of another version"""

COMMANDS = {
    "activities": (
        "batuta.cli.activities:activities",
        "Complete, fail and heartbeat activities from outside, by token.",
    ),
    "api-keys": ("batuta.cli.api_keys:api_keys", "Create, list, rotate and revoke keys of the server."),
    "audit": ("batuta.cli.audit:audit", "List and verify the audit log of operator actions."),
    "backup": ("batuta.cli.backup:backup", "Copy a SQLite database while workers write to it."),
    "bus": ("batuta.cli.bus.command:bus", "Topics, subscriptions and messages of the bus: list, publish, delete."),
    "cache": ("batuta.cli.cache:cache", "Look at a cache in Redis or Valkey, and clean it."),
    "check": ("batuta.cli.check:check", "Check workflow code: rules, shapes, and journals of a database."),
    "demo": ("batuta.cli.demo.command:demo", "Kill a worker in the middle of an order and watch another finish it."),
    "dev": ("batuta.cli.dev.command:dev", "Run a worker, the API and the dashboard in one process."),
    "flows": ("batuta.cli.flows.command:flows", "Flows as files: check, test, push, publish and export them."),
    "idempotency": ("batuta.cli.idempotency:idempotency", "List and delete idempotency keys of requests."),
    "jobs": ("batuta.cli.jobs:jobs", "Enqueue, list, show, cancel and retry jobs."),
    "keys": ("batuta.cli.keys:keys", "Make, list and rotate payload encryption keys."),
    "dead-letters": ("batuta.cli.dead_letters:dead_letters", "List, group, show, reprocess and discard dead letters."),
    "migrate": ("batuta.cli.migrate:migrate", "Create the tables, or bring them up to date."),
    "partners": ("batuta.cli.partners.command:partners", "List and change breakers and limits towards partners."),
    "prune": ("batuta.cli.retention:prune", "Delete runs whose retention is over, now."),
    "queues": ("batuta.cli.queues:queues", "List, show, limit, pause and resume queues."),
    "quotas": ("batuta.cli.quotas:quotas", "List, set and delete the quotas of a namespace."),
    "redaction": ("batuta.cli.redaction:redaction", "Redact payloads of a namespace in all commands."),
    "replay": ("batuta.cli.replay:replay", "Check that your code still replays recorded journals."),
    "retention": ("batuta.cli.retention:retention", "List, set and delete rules for how long closed runs are kept."),
    "runs": ("batuta.cli.runs.group:runs", "Start, list, inspect, signal, pause, cancel and retry runs."),
    "schedules": ("batuta.cli.schedules:schedules", "Create, list, pause, trigger and backfill schedules."),
    "server": ("batuta.cli.server:server", "Serve the REST API and the dashboard."),
    "status": ("batuta.cli.status:status", "Show workers, queues and problems on one screen."),
    "verify": ("batuta.cli.verify:verify", "Check that the database keeps its promises."),
    "webhooks": (
        "batuta.cli.partners.webhooks:webhooks",
        "Webhooks to other people's endpoints: list, change, send, resend.",
    ),
    "worker": ("batuta.cli.worker:worker", "Run a worker for the workflows, jobs and activities of a module."),
    "workers": ("batuta.cli.workers:workers", "List workers: host, queues, code and last heartbeat."),
}

root = LazyGroup(
    "batuta",
    COMMANDS,
    help="Run and operate durable workflows and jobs.\n\n" + EXIT_CODES,
)


def main() -> None:
    """The console script."""
    root(prog_name="batuta")
