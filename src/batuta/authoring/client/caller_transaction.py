"""Starts and signals inside the caller's own transaction, async or blocking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from batuta.authoring.backend import CallerWrite, RunRef
from batuta.errors import WrongTransaction

T = TypeVar("T")


class Deferred:
    """A caller's transaction for the blocking client: all is made ready in its event loop, and the write is left to
    `finish`, in the thread that has the connection."""

    def __init__(self, given: object) -> None:
        self.given = given
        self.entering: CallerWrite | None = None
        self.made: Callable[[Sequence[RunRef]], Any]

    def finish(self, otherwise: Any) -> Any:
        """Write, and give what is made of it; `otherwise` when there is nothing to write, such as a webhook that no
        endpoint takes. Raises WrongTransaction."""
        if self.entering is None:
            return otherwise
        if not self.entering.suits_a_thread:
            raise WrongTransaction(
                f"{type(self.given).__qualname__} belongs to an event loop: use a blocking connection or session with "
                f"batuta.sync, or batuta.connect in the event loop"
            )
        writing = self.entering.write()
        try:
            writing.send(None)
        except StopIteration as end:
            return self.made(end.value)
        writing.close()
        raise AssertionError("a connection that blocks never suspends")


async def within(
    transaction: object, enter: Callable[[object], Awaitable[CallerWrite]], made: Callable[[Sequence[RunRef]], T]
) -> T:
    """Prepare it with `enter`, and write it; `made` builds the return value. Raises WrongTransaction."""
    if isinstance(transaction, Deferred):
        transaction.entering = await enter(transaction.given)
        transaction.made = made
        return cast(T, None)
    entering = await enter(transaction)
    if not entering.suits_a_loop:
        raise WrongTransaction(
            f"{type(transaction).__qualname__} blocks, and would hold up this event loop: use an async connection or "
            f"session here, or batuta.sync where there is no event loop"
        )
    return made(await entering.write())
