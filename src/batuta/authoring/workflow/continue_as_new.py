"""Long lives: a run that ends and goes on as a new one, under its id and with a short journal."""

from __future__ import annotations

from typing import Any, NoReturn

from batuta.authoring.workflow.context import noticed, runtime_for


class ContinueAsNew(BaseException):
    """Raised by `continue_as_new`; caught by the run alone. Not an Exception: `except Exception` must not stop it."""

    def __init__(self, data: bytes, version: str) -> None:
        super().__init__("the run continues as new")
        self.data, self.version = data, version


def continue_as_new(*args: Any, version: str | None = None) -> NoReturn:
    """End this run here and continue as a new one of the same id, with these arguments and an empty journal.

    Messages that are unread, or taken and not yet received, go with it; queue, timeouts, retry, tags and memo stay.
    Activities in flight are cancelled, children get their policy, and callers of updates with unfinished handlers get
    UpdateInterrupted: `await handlers_done()` first. `version` is the version of the next run; without it, this one's.
    Call it in the workflow's own coroutine, not in a task. Raises InvalidInput or TypeError, and the run goes on, when
    the arguments do not fit; those of another version are checked where it runs.
    """
    runtime_for("continue_as_new()").continue_as_new(args, version)


@noticed
async def safe_point(*args: Any) -> None:
    """A point where the run may continue as new by itself: `args` are all it needs to go on.

    It does so when `info().continue_hint` is true and nothing is pending: no activity, timer or child, and no
    unfinished handler of a signal or update. Otherwise, and in most calls, nothing happens.
    """
    runtime = runtime_for("safe_point()")
    if runtime.at_safe_point(args):
        runtime.continue_as_new(args, None)
