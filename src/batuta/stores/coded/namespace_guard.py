"""Guards an encrypted namespace: processes that cannot read its mark cannot write into it.

It guards against mistakes, such as a worker started without BATUTA_KEYS. Processes with the keys accept nothing that
was not encrypted with them, with or without the mark.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from batuta.codecs.base import Bound
from batuta.errors import InvalidInput, PayloadRefused, PayloadSealed, UnknownSchedule
from batuta.journal.audit import Act
from batuta.journal.codec_envelope import ADVICE, is_coded
from batuta.journal.flows.records import (
    EventFilter,
    FlowFilter,
    FlowRow,
    FlowSchedule,
)
from batuta.journal.marks import CODEC
from batuta.journal.records import (
    Change,
    Claim,
    Message,
    Refusal,
    RunFilter,
    Verdict,
    WorkerInfo,
)
from batuta.journal.resilience.partners import WEBHOOK, PartnerChange, PartnerRule
from batuta.journal.schedules import ScheduleRow
from batuta.journal.server.documents import CODED
from batuta.journal.store import Store
from batuta.stores.coded.payloads import Payloads
from batuta.stores.coded.record_codec import BARE

T = TypeVar("T")
V = TypeVar("V", bound=Callable[..., Awaitable[Any]])

_SAID = "payloads here are encrypted"
_NO_CODEC = f"this process has no codec: {ADVICE}"


class Guard:
    """Of one store. It looks when that is opened, and when a worker registers or a schedule is written."""

    def __init__(self, store: Store, payloads: Payloads | None = None) -> None:
        """`payloads`: with the codecs of this process; None when it has none."""
        self._store, self._payloads = store, payloads
        self._why, self._may_mark, self._is_new = "", False, False
        self.settled = True
        """Nothing is refused, and nothing needs a mark: there is no need to ask."""

    async def look(self) -> None:
        """Read the mark of the namespace."""
        value = (await self._store.marks()).get(CODEC)
        self._why = "" if value is None else self._why_refused(value)
        self._may_mark = value is None and self._payloads is not None and self._payloads.strict
        self.settled = not self._why and not self._may_mark

    def _why_refused(self, value: str) -> str:
        try:
            if self._payloads is not None:
                self._payloads.decode(value, _place(self._payloads))
                return ""
            why = "this process has no codec"
        except PayloadSealed as error:
            why = str(error)
        return f"namespace {self._store.namespace!r} is encrypted, and {why}: {ADVICE}"

    async def check(self, *, later: bool = False) -> None:
        """Before payloads are written. Raises PayloadRefused. The first payloads of all mark the namespace.

        With `later` the next ones do: the caller has a transaction open that may keep others from writing."""
        if self._why:
            raise PayloadRefused(self._why)
        if self._may_mark:
            self._is_new = self._is_new or not await self._is_used()
            if later and self._is_new:
                return
            self._may_mark, self.settled = False, True
            if self._is_new:
                await self.mark()

    async def check_changes(self, changes: Iterable[Change]) -> None:
        """The same for a worker's commits. It may park a run that it cannot read."""
        if any(change.entries or change.start is not None for change in changes):
            await self.check()

    async def _is_used(self) -> bool:
        """Whether there may be something in the namespace that is not encrypted: then `batuta keys rotate` marks it."""
        store = self._store
        return bool(
            (await store.list_runs(RunFilter(), None, 1)).runs
            or await store.schedules("", 1)
            or await store.flows(FlowFilter(), limit=1)
            or await store.events(EventFilter(), limit=1)
        )

    async def mark(self, act: Act | None = None) -> bool:
        """Mark the namespace as encrypted, with a text encrypted by the first key. Raises InvalidInput."""
        if self._payloads is None or not self._payloads.strict:
            raise InvalidInput(
                "a namespace is marked as encrypted by those who read nothing else: set BATUTA_KEYS or "
                "BATUTA_KEYS_FILE, without the word 'plain'"
            )
        done = await self._store.set_mark(CODEC, self._payloads.encode(_SAID, _place(self._payloads)), act)
        await self.look()
        return done

    async def renew(self) -> None:
        """Mark it again with the first key. Raises PayloadSealed when the mark cannot be read."""
        value = (await self._store.marks()).get(CODEC)
        if value is not None and self._payloads is not None and not self._payloads.is_current(value):
            self._payloads.decode(value, _place(self._payloads))
            await self.mark()


def _place(payloads: Payloads) -> Bound:
    return payloads.bound("namespace", "mark")


def guarded(store: Store) -> Store:
    """A store without codecs, as clients have it: it writes nothing into a namespace that is marked as encrypted."""
    return store if hasattr(store, "coding") else cast(Store, UncodedStore(store))


class GuardedStore:
    """A store around another one, whose guard looks at the mark when it may have changed."""

    def __init__(self, store: Store, payloads: Payloads | None = None) -> None:
        self.inner, self.namespace = store, store.namespace
        self.guard = Guard(store, payloads)

    async def open(self) -> None:
        await self.inner.open()
        await self.guard.look()

    async def set_mark(self, name: str, value: str, act: Act | None = None) -> bool:
        if name == CODEC:
            return await self.guard.mark(act)
        return await self.inner.set_mark(name, value, act)

    async def clear_mark(self, name: str, act: Act | None = None) -> bool:
        done = await self.inner.clear_mark(name, act)
        await self.guard.look()
        return done


def _checked(verb: V) -> V:
    """A verb that always writes payloads: the guard may refuse it."""

    @wraps(verb)
    async def checked(self: GuardedStore, *args: Any, **kwargs: Any) -> Any:
        await self.guard.check()
        return await getattr(self.inner, verb.__name__)(*args, **kwargs)

    return cast(V, checked)


class UncodedStore(GuardedStore):
    """Implements `Store` around one without codecs. Other methods go to that store."""

    start = _checked(Store.start)
    start_many = _checked(Store.start_many)
    enter = _checked(Store.enter)
    fork = _checked(Store.fork)
    fire = _checked(Store.fire)
    accept_events = _checked(Store.accept_events)
    start_flow_run = _checked(Store.start_flow_run)
    publish_messages = _checked(Store.publish_messages)
    begin_request = _checked(Store.begin_request)
    put_api_key = _checked(Store.put_api_key)
    """Those who read the namespace would not believe it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def register(self, worker: WorkerInfo) -> int:
        await self.guard.look()
        return await self.inner.register(worker)

    async def send(self, run_id: Any, message: Message, act: Act | None = None) -> bool:
        if message.kind not in BARE:
            await self.guard.check()
        return await self.inner.send(run_id, message, act)

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        if not self.guard.settled:
            await self.guard.check_changes(changes)
        return await self.inner.commit(worker_id, changes)

    async def hand_over(
        self, worker: WorkerInfo, changes: Sequence[Change], limit: int
    ) -> tuple[dict[int, Verdict | list[Refusal]], Claim]:
        if not self.guard.settled:
            await self.guard.check_changes(changes)
        return await self.inner.hand_over(worker, changes, limit)

    async def put_schedule(self, schedule: ScheduleRow, expected: int | None = None, act: Act | None = None) -> bool:
        """A schedule whose spec does not change may be paused without its key."""
        await self.guard.look()
        known = None if expected is None else await self._spec_of(schedule.id)
        if known is not None and is_coded(known):
            if known != schedule.spec:
                raise PayloadSealed(f"schedule {schedule.id!r} is unchanged: it went through a codec, and {_NO_CODEC}")
        else:
            await self.guard.check()
        return await self.inner.put_schedule(schedule, expected, act)

    async def _spec_of(self, id: str) -> str | None:
        try:
            return (await self.inner.schedule(id)).schedule.spec
        except UnknownSchedule:
            return None

    async def change_partner(
        self, kind: str, name: str, key: str, rule: PartnerRule[T], act: Act | None = None
    ) -> PartnerChange[T]:
        if kind == WEBHOOK:
            await self.guard.check()
        return await self.inner.change_partner(kind, name, key, rule, act)

    async def put_flow(
        self,
        flow: FlowRow,
        expected: int | None = None,
        act: Act | None = None,
        schedule: FlowSchedule | None = None,
    ) -> bool:
        """One whose document does not change may be made inactive without its key."""
        if expected is None or not is_coded(flow.document):
            await self.guard.check()
        return await self.inner.put_flow(flow, expected, act, schedule)

    async def put_documents(self, kind: str, bodies: Mapping[str, str], keep: int, act: Act | None = None) -> None:
        if kind in CODED:
            await self.guard.check()
        await self.inner.put_documents(kind, bodies, keep, act)
