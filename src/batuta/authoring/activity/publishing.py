"""Publishing a message of the bus from an activity or job."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from batuta.authoring.activity.attempt import Attempt, AttemptVerb
from batuta.authoring.client.messages import Draft


@AttemptVerb
def publish(
    attempt: Attempt,
    topic: str,
    payload: Any,
    *,
    key: str = "",
    id: str | None = None,
    type: str | None = None,
) -> Future[str]:
    """Publish a message from inside an activity or job. It is durable when this returns its id.

    `key`: messages of one key are delivered one after the other, in order. `id`: a second message of the topic with
    this id is not published; without it the activity's key and a number, so that a retry publishes the same messages
    again, and none arrives twice. `type`: of the event; without it the topic. In a transactional activity the message
    leaves if, and only if, the transaction commits. Raises InvalidInput, TooLarge, and the errors of the store.
    """
    return attempt.publish(Draft(topic=topic, payload=payload, key=key, id=id, type=type))
