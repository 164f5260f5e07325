"""Activities that say for whom they work: what tests of middleware set around them."""

import contextvars
import threading

from batuta import activity

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@activity
async def on_the_loop(number: int) -> str:
    return f"{tenant.get()} {number}"


@activity
def in_a_thread(number: int) -> str:
    return f"{tenant.get()} {number} {threading.current_thread() is not threading.main_thread()}"
