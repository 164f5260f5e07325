"""`batuta runs`: start them, look at them, talk to them, end them."""

from __future__ import annotations

from batuta.cli.lazy import LazyGroup

runs = LazyGroup(
    "runs",
    {
        "cancel": ("batuta.cli.ending:cancel", "Ask a run to end; its code may clean up first."),
        "fork": ("batuta.cli.forking:fork", "Begin another run with what one has done up to an entry."),
        "journal": ("batuta.cli.looking:journal", "Every entry of a run's journal."),
        "list": ("batuta.cli.looking:list_runs", "Runs, newest first."),
        "publish": ("batuta.cli.talking:published", "The same as published."),
        "published": ("batuta.cli.talking:published", "What a run has published."),
        "query": ("batuta.cli.talking:query", "Ask about a run's state, with its code."),
        "reset": ("batuta.cli.forking:reset", "Let a run go on from after an entry of its journal."),
        "retry": ("batuta.cli.ending:retry", "Let a parked run be tried again."),
        "show": ("batuta.cli.looking:show", "One run: state, attempts, result."),
        "signal": ("batuta.cli.talking:signal", "Send a signal to a run."),
        "start": ("batuta.cli.starting:start", "Start a run of a workflow, by its name."),
        "terminate": ("batuta.cli.ending:terminate", "End a run at once; its code is not told."),
        "update": ("batuta.cli.talking:update", "Ask a run to do something, and print its answer."),
    },
    help="Start, list, show, talk to, cancel, terminate and retry runs.",
)
