"""Long lives: a run that ends and goes on as a new one, under its id and with a short journal."""

from __future__ import annotations

from typing import Any, NoReturn

from batuta.authoring.context import kinship


class ContinueAsNew(BaseException):
    """Raised by `continue_as_new`; caught by the run alone. Not an Exception: `except Exception` must not stop it."""

    def __init__(self, data: bytes, version: str) -> None:
        super().__init__("the run continues as new")
        self.data, self.version = data, version


def continue_as_new(*args: Any, version: str | None = None) -> NoReturn:
    """End this run here and go on as a new one of the same id, with these arguments and an empty journal.

    Messages that are unread, or taken and not yet received, go on with it; queue, timeouts, retry, tags and memo stay.
    Activities in flight are cancelled, children are told by their policy, updates whose handlers are not done raise
    UpdateInterrupted at their callers: `await handlers_done()` first. `version` is that of the next run's
    definition; without it, this one's. Call it in the workflow's own coroutine, not in a task. Raises InvalidInput or
    TypeError, and the run goes on, when the arguments do not fit; those of another version are checked where it runs.
    """
    kinship("continue_as_new()").continue_as_new(args, version)


async def safe_point(*args: Any) -> None:
    """A place where the run may continue as new by itself: `args` are all it needs to go on.

    It does when `info().continue_hint` is true and nothing is pending: no activity, timer or child, and no handler of
    a signal or update that is not done. Otherwise, and in most calls, nothing happens.
    """
    kin = kinship("safe_point()")
    if kin.at_safe_point(args):
        kin.continue_as_new(args, None)
