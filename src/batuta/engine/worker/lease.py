"""The heartbeat: renews the worker's lease from a thread of its own, and looks for workers that died."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from collections.abc import Callable

from batuta.clock import Clock
from batuta.durations import human_duration
from batuta.engine.activities.threads import ended
from batuta.engine.worker.background import woken
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.engine.worker.outage import BEATING, Outage
from batuta.errors import BatutaError, StoreUnavailable
from batuta.failpoints import failpoint
from batuta.ids import jitter
from batuta.journal.records import Pulse, WorkerInfo
from batuta.journal.store import Heartbeat, Store
from batuta.settings import Settings

log = logging.getLogger("batuta.lease")

_FIRST_RETRY, _RETRY = 0.01, 0.5
_SECOND_LOOKS = 10


class Lease:
    """Beats in a thread: a busy event loop must not cost the lease, but one that stands still for long must."""

    def __init__(
        self,
        store: Store,
        worker: WorkerInfo,
        settings: Settings,
        clock: Clock,
        on_pulse: Callable[[Pulse, float, float], None],
        on_lost: Callable[[str], None],
        outage: Outage,
    ) -> None:
        self._store, self._worker, self._settings, self._clock = store, worker, settings, clock
        self._outage = outage
        self._on_pulse, self._on_lost = on_pulse, on_lost
        self._host: asyncio.AbstractEventLoop
        self.monotonic = clock.monotonic
        self.valid_until = math.inf if store.poll_seconds is None else 0.0
        """By the monotonic clock: until then no other worker may take this one for dead. For ever, where there is
        no other: there nothing beats."""
        self._is_over = False
        self._renewing = threading.Lock()
        self._gapless_since: float | None = None
        self._time = DatabaseClock(clock)
        self._tick = 0.0
        self._opened: asyncio.Future[None]
        self._last: Pulse | None = None
        self._registered = threading.Event()
        self._stopping = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="batuta-lease", daemon=True)

    async def open(self) -> None:
        """Take the worker's lock, before it is registered: a registered worker without one counts as dead."""
        self._host = asyncio.get_running_loop()
        self._opened = self._host.create_future()
        self._thread.start()
        await self._opened

    def start(self, registered_at: float) -> None:
        """Begin to beat. The lease holds from `registered_at` (monotonic)."""
        self._renew(registered_at + self._settings.lease)
        self._gapless_since = registered_at
        self.tick()
        self._registered.set()
        self._wake()

    def may_act(self) -> bool:
        """Whether effects may go out: no other worker can have our runs, by the monotonic clock. Safe in any thread.

        While the lease is over they wait: the next beat says whether the runs are still ours.
        """
        monotonic = self.monotonic  # apart from its call: as a method it would be looked for in the class first
        return monotonic() < self.valid_until

    def _renew(self, until: float) -> None:
        with self._renewing:
            if not self._is_over:
                self.valid_until = until

    def end(self) -> None:
        """Nothing may act any more, whatever a beat that is under way brings."""
        with self._renewing:
            self._is_over, self.valid_until = True, -math.inf

    def beaten_at(self) -> float:
        """When the last heartbeat that the store has answered was sent."""
        return self.valid_until - self._settings.lease

    def tick(self) -> None:
        """The event loop is alive."""
        self._tick = self._clock.monotonic()

    async def stop(self) -> None:
        self._stopping.set()
        if not self._thread.ident:
            return  # never started
        try:
            self._wake()
        except RuntimeError:  # the thread and its loop have ended by themselves
            log.debug("the heartbeat has ended already")
        await ended(self._thread)

    # -- in the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:
            log.critical("the heartbeat has failed", exc_info=True)
            self._tell(self._settle_opening, _cannot_open(error))
            self._tell(self._on_lost, "the heartbeat has failed")

    async def _main(self) -> None:
        loop, wake = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(wake.set)
        wait = _FIRST_RETRY
        while not self._stopping.is_set():
            try:
                async with self._store.heartbeat(self._worker.worker_id) as heartbeat:
                    self._tell(self._settle_opening, None)
                    while not self._registered.is_set() and not self._stopping.is_set():
                        await woken(wake, _RETRY)
                    await self._beat_forever(heartbeat, wake)
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, the lease says how long it may last
                self._outage.failed(BEATING, error)
                if isinstance(error, BatutaError):
                    self._tell(self._settle_opening, error)
                else:
                    self._tell(self._settle_opening, _cannot_open(error))
                    if self._clock.monotonic() > self.valid_until + self._settings.lease:
                        # The store may have the beats, and keep our runs for us: let others have them.
                        self._tell(self._on_lost, f"its heartbeats fail: {error!r}")
                        return
                wait = _FIRST_RETRY if self._gapless_since is not None else min(wait * 2, _RETRY)
                self._gapless_since = None
                # At once at first: without the connection our lock is free, and others may take us for dead.
                await woken(wake, wait)

    def _settle_opening(self, error: BatutaError | None) -> None:
        if not self._opened.done():
            if error is None:
                self._opened.set_result(None)
            else:
                self._opened.set_exception(error)

    async def _beat_forever(self, heartbeat: Heartbeat, wake: asyncio.Event) -> None:
        while not self._stopping.is_set():
            if self._stands_still():
                await self._end_if_stuck(wake)
                continue
            failpoint("lease.before_beat")
            sent = self._clock.monotonic()
            if self._gapless_since is None:
                self._gapless_since = sent
            pulse = await heartbeat.beat(self._worker, reap=sent - self._gapless_since >= self._settings.lease)
            self._outage.worked(BEATING)
            received = self._clock.monotonic()
            if received > self.valid_until:  # the store stood still within this beat: everybody's lease is over
                self._gapless_since = received
            if self._time.learn(pulse.now, sent, received):  # its clock was set: leases of before say nothing
                self._gapless_since = received
            failpoint("lease.after_beat")
            if not self._accept(pulse, sent, received):
                return
            if pulse.peers and self._settings.fast_detection:
                await self._reap(heartbeat, pulse.peers, wake)
            if not pulse.reaped:  # there may be more: a beat sets a bounded number free
                await woken(wake, self._settings.heartbeat * (0.9 + 0.2 * jitter()))

    def _accept(self, pulse: Pulse, sent: float, received: float) -> bool:
        if not pulse.alive:
            self._tell(self._on_lost, "others took it for dead and have its runs")
            return False
        if self._last is not None and went_back(self._last, pulse):
            self._tell(self._on_lost, "the database is on another timeline than before, or was set back")
            return False
        self._last = pulse
        self._renew(sent + self._settings.lease)
        self._tell(self._on_pulse, pulse, sent, received)
        return True

    async def _reap(self, heartbeat: Heartbeat, peers: list[str], wake: asyncio.Event) -> None:
        """Their locks are free. If they still are after the grace, their runs are set free."""
        end = self._clock.monotonic() + self._settings.detection_grace
        while (left := end - self._clock.monotonic()) > 0:
            await woken(wake, left)
            if self._stopping.is_set():
                return
        failpoint("recover.before")
        freed = await heartbeat.reap(peers)
        failpoint("recover.after")
        log.info("%d workers are gone, %d of their runs are set free", len(peers), freed)
        if freed:
            now = Pulse(now=0, alive=True, due_at=0)
            self._tell(self._on_pulse, now, 0.0, 0.0)

    def _stands_still(self) -> bool:
        return self._clock.monotonic() - self._tick > self._settings.stuck_loop

    async def _end_if_stuck(self, wake: asyncio.Event) -> None:
        """A loop that stands still cannot notice that it lost its runs: better no process than a zombie.

        At first a machine that was suspended, or a process that was stopped, looks the same: the loop gets a tenth of
        the limit, in which this thread runs, to answer.
        """
        self._tell(self._answer)
        for _ in range(_SECOND_LOOKS):
            await woken(wake, self._settings.stuck_loop / 10 / _SECOND_LOOKS)
            if self._stopping.is_set() or not self._stands_still():
                return
        still = self._clock.monotonic() - self._tick
        log.critical(
            "the event loop has stood still for %s: this process ends, and others take its runs over. Code on the "
            "event loop must not block; the watchdog has named it",
            human_duration(round(still)),
        )
        logging.shutdown()
        os._exit(70)

    def _answer(self) -> None:
        self.tick()
        self._wake()

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._host.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the host loop is closed
            self._stopping.set()


def went_back(last: Pulse, pulse: Pulse) -> bool:
    """Whether the database may lack what was acknowledged before: claims, entries, whole runs.

    The fence refuses whatever does not fit, run by run. This is for what would wait for long before it writes.
    """
    if pulse.timeline != last.timeline or pulse.position < last.position:
        return True
    # A clock that was set back says nothing: others may have brought the last beat into line with it.
    return pulse.beaten_at is not None and pulse.beaten_at < last.now <= pulse.now


def _cannot_open(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the heartbeat cannot be opened: {error!r}")
