"""The reference jobs: retries, checkpoints, unique ones, a batch with a call at its end, and a queue with limits.

Everything is enqueued under ids that can be told beforehand, so that a client without an answer can enqueue it again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from batuta import JobCall, Queue, Retry, activity_info, batch_info, checkpoint, job, last_checkpoint
from batuta.client import Batuta
from chaos.ledger import LedgerClient, Record

LIMITED = "limited"
"""The queue with limits."""
LIMIT, KEY_LIMIT = 2, 1
PAGES = 4
EFFECT_S = 0.02
FAR_S = 3600.0
QUICK = Retry(attempts=6, first=0.04, factor=1.0, jitter=0.0)
STUBBORN = Retry(attempts=2, first=0.04, factor=1.0, jitter=0.0)

LIMITS = Queue(LIMITED, concurrency=LIMIT, key_concurrency=KEY_LIMIT)


class Hopeless(Exception):
    """What one job of the batch answers, every time."""


class Errands:
    """Jobs that tell the ledger what they do. One instance for a worker."""

    def __init__(self, ledger: LedgerClient) -> None:
        self._ledger = ledger

    def _note(self, what: str, text: str = "") -> None:
        info = activity_info()
        self._ledger.write(what, key=info.key, name=info.name, run=info.id, attempt=info.attempt, text=text)

    @job(retry=QUICK)
    async def copy(self, name: str) -> str:
        """Page after page, each with a checkpoint. The first attempt fails in the middle."""
        self._note("begin")
        for page in range(last_checkpoint(int, 0), PAGES):
            self._note("page", str(page))
            await checkpoint(page + 1)
            self._note("saved", str(page + 1))
            if page == 1 and activity_info().attempt == 1:
                self._note("fail")
                raise ConnectionError("not yet")
        self._note("end")
        return f"copied {name}"

    @job(retry=QUICK)
    def scan(self, name: str) -> str:
        """The same in a thread."""
        self._note("begin")
        for page in range(last_checkpoint(int, 0), PAGES):
            self._note("page", str(page))
            checkpoint.sync(page + 1)
            self._note("saved", str(page + 1))
        self._note("end")
        return f"scanned {name}"

    @job(queue=LIMITED, retry=QUICK, result=False)
    async def visit(self, name: str, key: str) -> None:
        """One at a time for each key, and no more than the queue allows."""
        self._note("begin")
        self._note("enter", key)
        await asyncio.sleep(EFFECT_S)
        self._note("leave", key)
        self._note("end")

    @job(retry=QUICK)
    async def settle(self, name: str) -> str:
        """Enqueued by everybody under one unique key."""
        self._note("begin")
        await asyncio.sleep(EFFECT_S)
        self._note("end")
        return f"settled {name}"

    @job(retry=STUBBORN)
    async def part(self, name: str, number: int) -> int:
        """One of a batch. The last of them never succeeds."""
        self._note("begin")
        time.sleep(EFFECT_S / 10)
        if number == 0:
            self._note("fail")
            raise Hopeless(name)
        self._note("end")
        return number

    @job(retry=QUICK)
    async def close_up(self, name: str) -> list[int]:
        """Called when the batch is done."""
        self._note("begin")
        batch = await batch_info()
        self._note("end")
        return [batch.total, batch.completed, batch.failed]


PARTS = 4


def expected_errand(name: str, args: list[Any], told: Any) -> Any:
    """What a job must return; what is told when nothing can be said."""
    match name:
        case "copy":
            return f"copied {args[0]}"
        case "scan":
            return f"scanned {args[0]}"
        case "settle":
            return f"settled {args[0]}"
        case "part":
            return args[1]
        case "close_up":
            return [PARTS, PARTS - 1, 1]
        case _:
            return told


def fails(name: str, args: list[Any]) -> bool:
    """Whether a run of that name can only fail."""
    return name == "part" and args[1] == 0


# -- what is enqueued

Enqueue = tuple[str, Callable[[Batuta], Awaitable[Any]]]


def errands(name: str) -> list[Enqueue]:
    """All that one client enqueues: each with the id of the run that must be there afterwards."""
    found = [
        one(Errands.copy.call(f"{name}-copy"), f"{name}-copy"),
        one(Errands.scan.call(f"{name}-scan").with_options(delay=EFFECT_S, priority=3), f"{name}-scan"),
        _unique(),
        _batch(name),
    ]
    for number, key in enumerate("ababcc"):
        id = f"{name}-visit-{number}"
        found.append(one(Errands.visit.call(id, key).with_options(key=key), id))
    return found


def made_by(name: str, id: str) -> list[str]:
    """The runs that must be there when what makes the run `id` was enqueued."""
    return [id, *_parts(name)] if id == f"{name}-close-up" else [id]


def ids_of(name: str) -> list[str]:
    """The runs that must be there when all was enqueued."""
    return [*(id for id, _ in errands(name)), *_parts(name)]


def _parts(name: str) -> list[str]:
    return [f"{name}-part-{number}" for number in range(PARTS)]


def one(call: JobCall[Any], id: str) -> Enqueue:
    """A single job."""

    async def enqueue(client: Batuta) -> None:
        await client.enqueue(call.with_options(id=id))

    return id, enqueue


def _unique() -> Enqueue:
    async def enqueue(client: Batuta) -> None:
        await client.enqueue(Errands.settle, "books", unique="books", unique_for=FAR_S)

    return "settle:books", enqueue


def _batch(name: str) -> Enqueue:
    async def enqueue(client: Batuta) -> None:
        parts = [Errands.part.call(name, number).with_options(id=id) for number, id in enumerate(_parts(name))]
        last = Errands.close_up.call(name).with_options(id=f"{name}-close-up")
        await client.enqueue_many(parts, on_done=last)

    return f"{name}-close-up", enqueue


# -- what the ledger must show


def over_the_limit(records: Iterable[Record]) -> list[str]:
    """Where more were inside than the limits of the queue allow. What a process had inside ends with the process."""
    inside: Counter[tuple[int, str, str]] = Counter()
    complaints = []
    for record in records:
        place = (record.pid, record.key, record.text)
        match record.what:
            case "enter":
                inside[place] += 1
                of_key = sum(times for (_, _, key), times in inside.items() if key == record.text)
                if of_key > KEY_LIMIT or inside.total() > LIMIT:
                    complaints.append(f"{record.run}: {of_key} of key {record.text}, {inside.total()} of all, at once")
            case "leave":
                del inside[place]
            case "gone":
                inside = Counter({where: times for where, times in inside.items() if where[0] != record.pid})
    return complaints


def unsaved(records: Iterable[Record]) -> list[str]:
    """Pages that were done again although a checkpoint beyond them was durable."""
    saved: Counter[str] = Counter()
    complaints = []
    for record in records:
        if record.what == "saved":
            saved[record.key] = max(saved[record.key], int(record.text))
        elif record.what == "page" and int(record.text) < saved[record.key]:
            complaints.append(f"{record.run}: page {record.text} again, {saved[record.key]} were saved")
    return complaints


def too_early(records: Iterable[Record]) -> list[str]:
    """Calls at the end of a batch that were begun before all of its parts had ended."""
    ended: set[str] = set()
    complaints = []
    for record in records:
        if record.name == "part" and record.what in ("end", "fail"):
            ended.add(record.run)
        elif record.name == "close_up" and record.what == "begin":
            batch = record.run.removesuffix("-close-up")
            missing = set(_parts(batch)) - ended
            if missing:
                complaints.append(f"{record.run}: begun before {sorted(missing)} had ended")
    return complaints
