"""`batuta runs`: start them, look at them, talk to them, end them."""

from __future__ import annotations

from batuta.cli.common.lazy import LazyGroup

runs = LazyGroup(
    "runs",
    {
        "cancel": ("batuta.cli.runs.control:cancel", "Cancel runs; their code may clean up first."),
        "count": ("batuta.cli.runs.inspect:count", "Count runs."),
        "delete": ("batuta.cli.runs.control:delete", "Delete closed runs and everything that belongs to them."),
        "diff": ("batuta.cli.runs.inspect:diff", "Compare two runs of a workflow, step by step."),
        "fork": ("batuta.cli.runs.fork:fork", "Fork a run: begin another one from an entry of its journal."),
        "journal": ("batuta.cli.runs.inspect:journal", "Show the journal of a run."),
        "list": ("batuta.cli.runs.inspect:list_runs", "List runs, newest first."),
        "pause": ("batuta.cli.runs.control:pause", "Pause runs: nothing new begins, nothing is lost."),
        "published": ("batuta.cli.runs.messages:published", "Show the published values of a run."),
        "query": ("batuta.cli.runs.messages:query", "Query the state of a run, with its code."),
        "reset": ("batuta.cli.runs.fork:reset", "Reset a run to an entry of its journal."),
        "resume": ("batuta.cli.runs.control:resume", "Resume paused runs."),
        "retry": ("batuta.cli.runs.control:retry", "Retry parked or failed runs from where they stopped."),
        "show": ("batuta.cli.runs.inspect:show", "Show one run: state, attempts, result."),
        "signal": ("batuta.cli.runs.messages:signal", "Send a signal to a run."),
        "start": ("batuta.cli.runs.start:start", "Start a run of a workflow, by its name."),
        "terminate": ("batuta.cli.runs.control:terminate", "Terminate runs at once, without telling their code."),
        "timeline": ("batuta.cli.runs.inspect:timeline", "Show where the time of a run went, with every attempt."),
        "update": ("batuta.cli.runs.messages:update", "Send an update to a run, and print its answer."),
    },
    help="Start, list, inspect, signal, pause, cancel, terminate, retry, reset, fork and delete runs.",
)
