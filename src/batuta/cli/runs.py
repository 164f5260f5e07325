"""`batuta runs`: start them, look at them, talk to them, end them."""

from __future__ import annotations

from batuta.cli.lazy import LazyGroup

runs = LazyGroup(
    "runs",
    {
        "cancel": ("batuta.cli.operating:cancel", "Ask runs to end; their code may clean up first."),
        "delete": ("batuta.cli.operating:delete", "Delete closed runs with all that belongs to them."),
        "diff": ("batuta.cli.looking:diff", "Compare two runs of a workflow, step by step."),
        "fork": ("batuta.cli.forking:fork", "Begin another run with what one has done up to an entry."),
        "journal": ("batuta.cli.looking:journal", "Every entry of a run's journal."),
        "list": ("batuta.cli.looking:list_runs", "Runs, newest first."),
        "pause": ("batuta.cli.operating:pause", "Hold runs: nothing new begins, nothing is lost."),
        "publish": ("batuta.cli.talking:published", "The same as published."),
        "published": ("batuta.cli.talking:published", "What a run has published."),
        "query": ("batuta.cli.talking:query", "Ask about a run's state, with its code."),
        "reset": ("batuta.cli.forking:reset", "Let a run go on from after an entry of its journal."),
        "resume": ("batuta.cli.operating:resume", "Let paused runs go on."),
        "retry": ("batuta.cli.operating:retry", "Let parked or failed runs go on from where they stopped."),
        "show": ("batuta.cli.looking:show", "One run: state, attempts, result."),
        "signal": ("batuta.cli.talking:signal", "Send a signal to a run."),
        "start": ("batuta.cli.starting:start", "Start a run of a workflow, by its name."),
        "terminate": ("batuta.cli.operating:terminate", "End runs at once; their code is not told."),
        "timeline": ("batuta.cli.looking:timeline", "Where the time of a run went, and every attempt."),
        "update": ("batuta.cli.talking:update", "Ask a run to do something, and print its answer."),
    },
    help="Start, list, show, talk to, pause, resume, cancel, terminate, retry and delete runs.",
)
