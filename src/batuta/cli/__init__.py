"""The command `batuta`. Commands are loaded when they are called: `batuta --help` stays quick.

Data goes to stdout (a table, or one JSON document with --json), everything else to stderr.
"""

from __future__ import annotations

from batuta.cli.lazy import LazyGroup

EXIT_CODES = """\b
Exit codes:
  0  it went well
  1  the run did not complete or refuses what was asked of it, or check, verify, replay or backup
     found something
  2  the command or its input is wrong
  3  there is no such run, queue, schedule or dead letter
  4  the database cannot be used (away, full, or of another version)"""

COMMANDS = {
    "activities": ("batuta.cli.activities:activities", "Complete and fail activities from outside, by token."),
    "audit": ("batuta.cli.audit:audit", "What operators did, and whether the log of it is whole."),
    "backup": ("batuta.cli.backup:backup", "Copy a SQLite database while workers write to it."),
    "check": ("batuta.cli.check:check", "Check workflow code: rules, shapes, and journals of a database."),
    "demo": ("batuta.cli.demo.command:demo", "Kill a worker in the middle of an order and watch another finish it."),
    "jobs": ("batuta.cli.jobs:jobs", "Enqueue, list, show, cancel and retry jobs."),
    "keys": ("batuta.cli.keys:keys", "Make keys for payloads, and encrypt anew with the first of them."),
    "letters": ("batuta.cli.letters:letters", "List, group, show, reprocess and discard dead letters."),
    "migrate": ("batuta.cli.migrate:migrate", "Create the tables, or bring them up to date."),
    "prune": ("batuta.cli.retention:prune", "Delete now what the rules of retention no longer keep."),
    "queues": ("batuta.cli.queues:queues", "List, show, limit, pause and resume queues."),
    "quotas": ("batuta.cli.quotas:quotas", "How much a namespace may start: list, set and clear its quotas."),
    "replay": ("batuta.cli.replay:replay", "Check that recorded journals still fit the code."),
    "retention": ("batuta.cli.retention:retention", "How long closed runs are kept: list, set and drop the rules."),
    "runs": ("batuta.cli.runs:runs", "Start, list, show, talk to, pause and end runs."),
    "schedules": ("batuta.cli.schedules:schedules", "Make, look at, pause, trigger and backfill schedules."),
    "verify": ("batuta.cli.verify:verify", "Check that the database keeps its promises."),
    "worker": ("batuta.cli.worker:worker", "Run the workflows and activities of a module."),
}

root = LazyGroup(
    "batuta",
    COMMANDS,
    help="Durable workflows: start them, work on them, look at them.\n\n" + EXIT_CODES,
)


def main() -> None:
    """The console script."""
    root(prog_name="batuta")
