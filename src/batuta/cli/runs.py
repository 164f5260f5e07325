"""`batuta runs`: start, list, show, journal, cancel, terminate, retry."""

from __future__ import annotations

from batuta.cli.lazy import LazyGroup

runs = LazyGroup(
    "runs",
    {
        "cancel": ("batuta.cli.ending:cancel", "Ask a run to end; its code may clean up first."),
        "journal": ("batuta.cli.looking:journal", "Every entry of a run's journal."),
        "list": ("batuta.cli.looking:list_runs", "Runs, newest first."),
        "retry": ("batuta.cli.ending:retry", "Let a parked run be tried again."),
        "show": ("batuta.cli.looking:show", "One run: state, attempts, result."),
        "start": ("batuta.cli.starting:start", "Start a run of a workflow, by its name."),
        "terminate": ("batuta.cli.ending:terminate", "End a run at once; its code is not told."),
    },
    help="Start, list, show, cancel, terminate and retry runs.",
)
