"""Publishing a message of the bus from an activity or job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from batuta.authoring.activity.attempt import current_attempt
from batuta.authoring.activity.checkpoints import loop_for, refuse_on_loop
from batuta.authoring.client.messages import Draft


class _Publish:
    """`await publish(topic, payload)` in async code, `publish.sync(topic, payload)` in code that runs in a thread."""

    def __call__(
        self,
        topic: str,
        payload: Any,
        *,
        key: str = "",
        id: str | None = None,
        type: str | None = None,
    ) -> Awaitable[str]:
        """Publish a message from inside an activity or job. It is durable when this returns its id.

        `key`: messages of one key are delivered one after the other, in order. `id`: a second message of the topic with
        this id is not published; without it the activity's key and a number, so that a retry publishes the same
        messages again, and none arrives twice. `type`: of the event; without it the topic. In a transactional
        activity the message leaves if, and only if, the transaction commits. Raises InvalidInput, TooLarge, and the
        errors of the store.
        """
        loop = loop_for("publish(...)", "publish.sync(...)")
        draft = Draft(topic=topic, payload=payload, key=key, id=id, type=type)
        return asyncio.wrap_future(current_attempt("publish()").publish(draft), loop=loop)

    def sync(
        self,
        topic: str,
        payload: Any,
        *,
        key: str = "",
        id: str | None = None,
        type: str | None = None,
    ) -> str:
        """The same for code that is not async. It blocks."""
        refuse_on_loop("publish.sync(...)", "await publish(...)")
        draft = Draft(topic=topic, payload=payload, key=key, id=id, type=type)
        return current_attempt("publish.sync()").publish(draft).result()


publish = _Publish()
