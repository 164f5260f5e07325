"""Many subscriptions, of which some fail, for the page Bus."""

from batuta import App, Retry
from batuta.bus import Message, subscribe

TOPICS, PER_TOPIC = 30, 2


async def take(message: Message[int]) -> None:
    if message.payload < 0:
        raise ValueError(f"cannot take {message.payload}")


APP = App(
    subscriptions=[
        subscribe(f"topic-{topic:02}", take, name=f"taker-{topic:02}-{number}", retry=Retry(attempts=1))
        for topic in range(TOPICS)
        for number in range(PER_TOPIC)
    ]
)
