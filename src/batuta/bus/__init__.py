"""The bus: messages that are published once and delivered to every subscription, each delivery as a job.

```python
@job(retry=Retry(attempts=5))
async def book(message: Message[Order]) -> None: ...

async with client.worker(subscriptions=[subscribe("orders", book)]):
    await client.publish("orders", {"id": 17}, key="customer 4")
```
"""

from __future__ import annotations

from batuta.authoring.activity.publishing import publish
from batuta.authoring.client.messages import Message
from batuta.bus.broker import Broker
from batuta.bus.subscriptions import Subscription, subscribe
from batuta.journal.bus.messages import BusStatus, SubscriptionStatus, TopicStatus

__all__ = [
    "Broker",
    "BusStatus",
    "Message",
    "Subscription",
    "SubscriptionStatus",
    "TopicStatus",
    "publish",
    "subscribe",
]
