"""Runs by the calendar: cron in a time zone, an interval, and what happens to slots that were missed.

Here in virtual time: three days take no time.

Prints:
    books closed at 02:00: 3 times
    watched every 15 minutes: 288 times
    after an hour without a worker: 4 slots caught up on
    next: 2023-11-18T05:00:00+00:00
"""

from zoneinfo import ZoneInfo

from batuta import Schedule, activity, cron, every, now, workflow
from batuta.testing import Environment, run

closed: list[str] = []
watched: list[str] = []


@activity
async def note(where: str, what: str) -> None:
    {"closed": closed, "watched": watched}[where].append(what)


@workflow
async def close_the_books() -> None:
    await note("closed", f"{now().astimezone(ZoneInfo('America/Sao_Paulo')):%H:%M}")


@workflow
async def watch(place: str) -> None:
    await note("watched", place)


SCHEDULES = [
    Schedule("books", cron("0 2 * * *", zone="America/Sao_Paulo"), close_the_books, overlap="buffer", timeout=3600),
    Schedule("watch", every(900), watch, "the till", overlap="allow", catch_up=3600),
]


async def main() -> None:
    async with Environment(workflows=[close_the_books, watch], activities=[note], schedules=SCHEDULES) as env:
        await env.advance(3 * 86_400)
        print(f"books closed at {', '.join(set(closed))}: {len(closed)} times")
        print(f"watched every 15 minutes: {len(watched)} times")

        await env.worker.stop()
        await env.advance(3_600)
        before = len(watched)
        await env.deploy()
        await env.advance(1)
        print(f"after an hour without a worker: {len(watched) - before} slots caught up on")
        print(f"next: {(await env.client.schedules.next_times('books', 1))[0].isoformat()}")


if __name__ == "__main__":
    run(main())
