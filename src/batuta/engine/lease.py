"""The heartbeat: renews the worker's lease from a thread of its own, and looks for workers that died."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from collections.abc import Callable

from batuta.clock import Clock
from batuta.errors import BatutaError, StoreUnavailable
from batuta.failpoints import failpoint
from batuta.ids import jitter
from batuta.journal.records import Pulse, WorkerInfo
from batuta.journal.store import Heart, Store
from batuta.settings import Settings

log = logging.getLogger("batuta.lease")

_FIRST_RETRY, _RETRY = 0.01, 0.5
_SECOND_LOOKS = 10


class Lease:
    """Beats in a thread: a busy event loop must not cost the lease. One that stands still for long must."""

    def __init__(
        self,
        store: Store,
        worker: WorkerInfo,
        settings: Settings,
        clock: Clock,
        on_pulse: Callable[[Pulse, float, float], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._store, self._worker, self._settings, self._clock = store, worker, settings, clock
        self._on_pulse, self._on_lost = on_pulse, on_lost
        self._host: asyncio.AbstractEventLoop
        self.monotonic = clock.monotonic
        self.valid_until = 0.0
        """By the monotonic clock: until then nobody else may believe that this worker is dead."""
        self._is_over = False
        self._renewing = threading.Lock()
        self._gapless_since: float | None = None
        self._tick = 0.0
        self._opened: asyncio.Future[None]
        self._timeline = ""
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
        """Whether effects may go out: nobody can have taken our runs, by the monotonic clock. Safe in any thread.

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

    def last_for_ever(self) -> None:
        """Where nobody else can take runs, nothing beats."""
        self._renew(math.inf)

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
        await asyncio.to_thread(self._thread.join)

    # -- in the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:
            log.critical("the heartbeat has failed", exc_info=True)
            self._tell(self._settle_opening, StoreUnavailable(f"the heartbeat cannot be opened: {error!r}"))
            self._tell(self._on_lost, "the heartbeat has failed")

    async def _main(self) -> None:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        wait = _FIRST_RETRY
        while not self._stopping.is_set():
            try:
                async with self._store.heart(self._worker.worker_id) as heart:
                    self._tell(self._settle_opening, None)
                    while not self._registered.is_set() and not self._stopping.is_set():
                        await _wait(woken, _RETRY)
                    await self._beat_forever(heart, woken)
                return
            except BatutaError as error:
                log.warning("no heartbeat: %s", error)
                self._tell(self._settle_opening, error)
                wait = _FIRST_RETRY if self._gapless_since is not None else min(wait * 2, _RETRY)
                self._gapless_since = None
                # At once at first: without the connection our lock is free, and others may take us for dead.
                await _wait(woken, wait)

    def _settle_opening(self, error: BatutaError | None) -> None:
        if not self._opened.done():
            if error is None:
                self._opened.set_result(None)
            else:
                self._opened.set_exception(error)

    async def _beat_forever(self, heart: Heart, woken: asyncio.Event) -> None:
        while not self._stopping.is_set():
            if self._stands_still():
                await self._end_if_stuck(woken)
                continue
            failpoint("lease.before_beat")
            sent = self._clock.monotonic()
            if self._gapless_since is None:
                self._gapless_since = sent
            pulse = await heart.beat(self._worker, reap=sent - self._gapless_since >= self._settings.lease)
            received = self._clock.monotonic()
            if received > self.valid_until:  # the store stood still within this beat: everybody's lease is over
                self._gapless_since = received
            failpoint("lease.after_beat")
            if not self._accept(pulse, sent, received):
                return
            if pulse.peers and self._settings.fast_detection:
                await self._bury(heart, pulse.peers, woken)
            if not pulse.reaped:  # there may be more: a beat sets a bounded number free
                await _wait(woken, self._settings.heartbeat * (0.9 + 0.2 * jitter()))

    def _accept(self, pulse: Pulse, sent: float, received: float) -> bool:
        if not pulse.alive:
            self._tell(self._on_lost, "others took it for dead and have its runs")
            return False
        if self._timeline and pulse.timeline != self._timeline:
            self._tell(self._on_lost, "the database is on another timeline than before")
            return False
        self._timeline = pulse.timeline
        self._renew(sent + self._settings.lease)
        self._tell(self._on_pulse, pulse, sent, received)
        return True

    async def _bury(self, heart: Heart, peers: list[str], woken: asyncio.Event) -> None:
        """Their locks are free. If they still are after the grace, their runs are set free."""
        end = self._clock.monotonic() + self._settings.detection_grace
        while (left := end - self._clock.monotonic()) > 0:
            await _wait(woken, left)
            if self._stopping.is_set():
                return
        failpoint("recover.before")
        freed = await heart.bury(peers)
        failpoint("recover.after")
        log.info("%d workers are gone, %d of their runs are set free", len(peers), freed)
        if freed:
            now = Pulse(now=0, alive=True, due_at=0)
            self._tell(self._on_pulse, now, 0.0, 0.0)

    def _stands_still(self) -> bool:
        return self._clock.monotonic() - self._tick > self._settings.stuck_loop

    async def _end_if_stuck(self, woken: asyncio.Event) -> None:
        """A loop that stands still cannot notice that it lost its runs: better no process than a zombie.

        At first a machine that was suspended, or a process that was stopped, looks the same: the loop gets a tenth of
        the limit, in which this thread runs, to answer.
        """
        self._tell(self._answer)
        for _ in range(_SECOND_LOOKS):
            await _wait(woken, self._settings.stuck_loop / 10 / _SECOND_LOOKS)
            if self._stopping.is_set() or not self._stands_still():
                return
        still = self._clock.monotonic() - self._tick
        log.critical("the event loop has stood still for %.0f s: this process ends", still)
        logging.shutdown()
        os._exit(70)

    def _answer(self) -> None:
        self.tick()
        self._wake()

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._host.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the host loop is closed: nobody is left to tell
            self._stopping.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
            event.clear()
    except TimeoutError:
        pass
