"""One registration of a worker: what it owns while it is alive, and nothing of it afterwards."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from batuta.authoring.definitions import Activity, Workflow
from batuta.authoring.failures.known_errors import KnownErrors
from batuta.clock import SECOND, Clock
from batuta.durations import human_duration
from batuta.engine.activities.call import Turn
from batuta.engine.activities.executor import Executor
from batuta.engine.activities.publisher import Publisher
from batuta.engine.activities.transactional import Transactions
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.replay import Replay, missing_of
from batuta.engine.machine.routing import Route, RoutedCall, end_overdue
from batuta.engine.run.inputs import pause_of
from batuta.engine.run.jobs import CallRun, EarlyRun, JobWorkflow, may_begin_early
from batuta.engine.run.owned_run import OwnedRun
from batuta.engine.worker.admission import Admission
from batuta.engine.worker.background import woken
from batuta.engine.worker.committer import STORE_FAILED, Committer
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.engine.worker.dead_letter_alerts import Alerts
from batuta.engine.worker.gc_tuning import GcHeadroom
from batuta.engine.worker.inbox import InboxReader
from batuta.engine.worker.lease import Lease
from batuta.engine.worker.middleware import MiddlewareStack
from batuta.engine.worker.outage import Outage
from batuta.engine.worker.poller import Poller
from batuta.engine.worker.pruner import Pruner
from batuta.engine.worker.reconciler import Reconciler
from batuta.engine.worker.reporter import Reporter
from batuta.engine.worker.scheduler import Scheduler
from batuta.engine.worker.timers import Timers
from batuta.engine.worker.waiters import Completion, Waiters
from batuta.engine.worker.watchdog import Watchdog
from batuta.errors import InvalidInput, PayloadSealed, StoreError, StoreUnavailable, UnknownRun, WorkflowBroken, told
from batuta.failpoints import failpoint
from batuta.ids import RunId, new_worker_id
from batuta.journal.entries import Body, Command
from batuta.journal.process_identity import this_process
from batuta.journal.records import Hint, Message, NewRun, Pulse, RunKind, StoredRun, WorkerInfo
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.settings import Settings

log = logging.getLogger("batuta.engine")

_SLICE = 128
_TICK = 0.5
_WORKING = "work on runs, which the next heartbeat repeats,"
_LAST_WORDS = 2.0
"""Seconds that a stop waits for the last details of heartbeats to be durable."""
_HASTENED = 1_000
"""Runs that are made due again at once after the database's clock was set back."""
_FOR_EVER = 100 * 365 * 86_400.0


class Session:
    """A worker's life from one registration to its end. Implements what live runs need of their host."""

    def __init__(
        self,
        store: Store,
        workflows: Mapping[str, Workflow[..., Any]],
        activities: Mapping[str, Activity[..., Any]],
        queues: Sequence[str],
        rooms: Mapping[str, int],
        settings: Settings,
        clock: Clock,
        on_lost: Callable[[str], None],
        waiters: Waiters,
        letters: Alerts,
        known: KnownErrors,
        middleware: MiddlewareStack | None = None,
    ) -> None:
        self.store, self.workflows, self.settings = store, workflows, settings
        self.clock, self.monotonic = DatabaseClock(clock), clock.monotonic
        self._beats = store.poll_seconds is not None
        worker_id = new_worker_id()
        self.info = WorkerInfo(
            worker_id=worker_id,
            queues=list(queues),
            code={name: workflow.fingerprint for name, workflow in workflows.items()},
            host=socket.gethostname(),
            pid=os.getpid(),
            process=this_process(),
            lease=round((settings.lease if self._beats else _FOR_EVER) * SECOND),
        )
        self.admission = Admission(self.info, workflows, rooms, settings)
        self.runs: dict[int, OwnedRun] = {}  # by the numbers of their run ids: UUIDs hash slowly
        self._on_lost, self.waiters, self.letters, self.known = on_lost, waiters, letters, known
        self._starts: deque[tuple[NewRun, Workflow[..., Any], Body, asyncio.Future[Completion]]] = deque()
        self.outage = waiters.outage
        self._lease = Lease(store, self.info, settings, clock, self._on_pulse, self._lost, self.outage)
        self.may_act, self.timers = self._lease.may_act, Timers(self.clock)
        self.executor = Executor(activities, self.clock, settings, self._lease, self.permission)
        self.begins = None if middleware is None or not middleware.begin else middleware.begins
        self.reporter = Reporter(() if middleware is None else middleware.ears, self.clock, self.info, store)
        self.listens = self.reporter.listens_to_steps
        self._loop = asyncio.get_running_loop()
        self.context = contextvars.copy_context()
        self.committer = Committer(
            store, worker_id, settings, self.clock, self.may_act, self._lost, self.outage, self.reporter, self.context
        )
        if middleware is not None:
            middleware.put_around(self.executor, activities)
            self.executor.report_to(self.reporter.on_attempt, self.reporter.on_beats)
        self.submit_end: Callable[[OwnedRun], None] = self.committer.submit
        self._transactions = Transactions(self)
        self.executor.let_write(self._transactions, Publisher(store, settings.broker))
        self._poller = Poller(self, self.committer)
        self._scheduler = Scheduler(store, self.clock, self.outage, self.reporter)
        self._pruner = Pruner(store, worker_id, settings, clock.monotonic, self.outage)
        self._watchdog = Watchdog(settings.stuck_turn, self._holding_up, clock)
        self.turn: OwnedRun | None = None
        self._hinted: set[RunId] = set()
        self._lingering: set[RunId] = set()
        self._inbox, self._reconciler = InboxReader(self), Reconciler(self, self._poller)
        self._tasks: set[asyncio.Task[None]] = set()
        self._emptied, self._renewed = asyncio.Event(), asyncio.Event()
        self._room, self.turns = GcHeadroom(), self.executor.turns
        self.over = self._hurried = self.draining = self._hastening = False
        """`over`: everything was dropped."""
        self._set_back: tuple[int, int] | None = None
        """From when the database's clock was set back, and by how much, as long as the store has not dealt with it."""
        self.in_hand: list[RunId] = []
        """Once everything was dropped: runs of which something was lost, or was being executed."""
        self._ticked = clock.monotonic()
        self._ticking: asyncio.TimerHandle | None = None
        self._unlisten: Callable[[], None] = lambda: None

    # -- life

    async def open(self, *, beaten: bool = False) -> None:
        """Register, and begin to work; with `beaten` not before the first heartbeat has come through. When that fails
        or is cancelled, nothing of it is left."""
        self.executor.open(self._loop, self.context)
        self.executor.gates.open(self.store, self.clock, self.spawn, self.reporter.tell, self._loop, self.context)
        self._transactions.open(self._loop, self.context)
        try:
            await self._open(beaten)
        except BaseException:
            await self.abandoned()
            with suppress(StoreError):
                await self.store.retire(self.info.worker_id)
            raise

    async def _open(self, beaten: bool) -> None:
        if self._beats:
            await self._lease.open()
        registered_at = self.monotonic()
        now = await self.store.register(self.info)
        self.clock.learn(now, registered_at, self.monotonic())
        if self._beats:
            self._lease.start(registered_at)
            self._watchdog.start()
            self._tick()
            if beaten and not await woken(self._renewed, self.settings.lease):
                raise StoreUnavailable("no heartbeat has come through")
        else:  # one beat, for what beats do besides renewing: revive parked runs, end those over their time
            async with self.store.heartbeat(self.info.worker_id) as heartbeat:
                pulse = await heartbeat.beat(self.info, reap=False)
            self._scheduler.learn(pulse.schedule_at)
            self.timed_out(pulse.timed_out)
        self._unlisten = self.store.listen(self._on_hint)
        self._scheduler.start()
        self._pruner.start()
        await self._poller.open()
        self.reporter.started()

    async def close(self, grace: float) -> None:
        """Hand back idle runs at once, wait for activities in flight, then leave."""
        if self.over:
            return
        self.draining = True
        failpoint("stop.begin")
        await self._scheduler.stop()
        await self._pruner.stop()
        await self._poller.stop()
        for run in list(self.runs.values()):
            run.evict_when_draining()
        failpoint("stop.released")
        await self._empty_within(grace)
        self.executor.flush()
        await self.committer.written(_LAST_WORDS)
        await self.abandoned()
        try:
            await self.store.retire(self.info.worker_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, a stop must not fail for it
            log.warning("could not sign off, others will notice when the lease is over: %r", error)
        self.reporter.stopped()

    def hurry(self) -> None:
        """A stop is under way: do not wait any longer for activities in flight."""
        self._hurried = True
        self._emptied.set()

    async def _empty_within(self, grace: float) -> None:
        self._emptied.clear()
        if self.runs and not self._hurried and grace > 0 and (busy := self.executor.at_work()):
            names = ", ".join(name if count == 1 else f"{name} ({count})" for name, count in sorted(busy.items()))
            log.info("stopping: waiting up to %s for %s", human_duration(grace), names)
        try:
            async with asyncio.timeout(grace):
                while self.runs and not self._hurried:
                    await self._emptied.wait()
                    self._emptied.clear()
        except TimeoutError:
            if self.runs:
                log.warning(
                    "%d runs were still busy after %s and will run elsewhere", len(self.runs), human_duration(grace)
                )

    async def abandoned(self) -> None:
        """Drop everything, and wait for what that leaves behind."""
        self.abandon()
        if self._beats:
            await self._lease.stop()
            await self._watchdog.stopped()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, self._poller.handover.gone(_LAST_WORDS), return_exceptions=True)
        await self._transactions.ended()

    def abandon(self) -> None:
        """Drop everything at once: none of it is ours any more."""
        if self.over:
            return
        self.over = True
        self._lease.end()
        self.committer.stop()
        self.timers.stop()
        self._watchdog.stop()
        self._poller.cancel()
        self._scheduler.cancel()
        self._pruner.cancel()
        self._unlisten()
        if self._ticking is not None:
            self._ticking.cancel()
        for run in list(self.runs.values()):
            run.drop()
        self.executor.close()
        self._transactions.close()
        while self._starts:
            future = self._starts.popleft()[3]
            if not future.done():
                future.set_exception(StoreUnavailable("the worker is stopping; start it again"))
        self._room.fit(0)

    def _lost(self, why: str) -> None:
        if not self.over:
            log.error("worker %s drops everything and registers anew: %s", self.info.worker_id, why)
            runs = self.runs.values()
            self.in_hand = [run.run_id for run in runs if run.early or run.calls or run.head != run.durable]
            self.abandon()
            self.reporter.lost(why)
            self._on_lost(why)

    def store_failed(self) -> None:
        """The store must be opened anew."""
        self._lost(STORE_FAILED)

    def store_was_there(self, since: float) -> bool:
        """Whether a heartbeat has reached the store since that moment of the monotonic clock."""
        return self._beats and since < self._lease.beaten_at()

    async def permission(self) -> None:
        """Wait until effects may go out again. Never returns in a session that is over: what waits is cancelled."""
        while not self.may_act():
            await self._renewed.wait()

    def _tick(self) -> None:
        self._ticked = self.monotonic()
        self._room.fit(len(self.runs))
        self._lease.tick()
        self.committer.tick()
        self._ticking = self._loop.call_later(_TICK, self._tick)

    # -- what live runs need

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback, context=self.context)

    def may_linger(self, run_id: RunId) -> bool:
        if run_id not in self._lingering:
            if len(self._lingering) >= self.settings.max_runs // 2:  # the other half is for those they wait for
                return False
            self._lingering.add(run_id)
        return True

    def report(self, run: OwnedRun, turn: Turn) -> None:
        if self.reporter.listens:
            self.reporter.committed([(run, *turn)], {})

    def send_ends_to(self, submit: Callable[[OwnedRun], None]) -> None:
        """Have the ends of jobs written so."""
        self.submit_end = submit

    def finished(self, run: OwnedRun, outcome: Command) -> None:
        if self.waiters.waiting:
            self.waiters.settle(run.run_id, (RunState.COMPLETED, outcome))
        self.forget(run, None)

    def forget(self, run: OwnedRun, wake_at: int | None) -> None:
        run_id = run.run_id
        there = self.runs.pop(run_id.int, None)
        if there is not run and there is not None:
            self.runs[run_id.int] = there
        elif there is not None:
            if type(run) is not OwnedRun or self.admission.limited:
                self.admission.leave(run)
            if self._hinted or self._lingering or self._inbox.unhurried:  # empty as a rule
                for named in (self._hinted, self._lingering, self._inbox.unhurried):
                    named.discard(run_id)
            if not self.runs:
                self._emptied.set()
                if not self._beats:  # else at the next tick: more may begin at once
                    self._room.fit(0)
            if run.lacking and wake_at is not None:
                self._poller.due(self.admission.decline(run, wake_at))
            self._poller.freed(wake_at)

    def _holding_up(self) -> str | None:
        """For the watchdog: names the code that holds up the event loop."""
        run = self.turn
        if run is not None:
            return f"turn {run.machine.entries} of run {run.identity.id!r} (workflow {run.workflow.name!r})"
        if self.monotonic() - self._ticked > 2 * _TICK:
            return "an async activity, or other code on the event loop,"
        return None

    # -- runs come in

    @property
    def free(self) -> int:
        """How many more runs may come into memory."""
        return self.settings.max_runs - len(self.runs) - len(self._starts)

    def takes(self, queue: str, code: str) -> bool:
        """Whether a new run may begin here at once, instead of waiting in the queue."""
        workflow = self.workflows.get(code)
        if workflow is None or self.over or self.draining or self._poller.backlog or queue not in self.info.queues:
            return False
        if len(self.runs) + len(self._starts) >= self.settings.max_runs:
            return False
        if type(workflow) is Workflow and not self.admission.picky:
            return True
        return self.admission.may_start(queue, workflow, self.monotonic, claiming=self._poller.claiming)

    def avoid(self, queue: str) -> None:
        """No start into that queue may be owned, for a while."""
        self.admission.avoid(queue, self.monotonic())

    def start_here(self, new: NewRun, body: Body) -> asyncio.Future[Completion]:
        """Run the first turn and insert the run already owned. The future fails as the start does."""
        future: asyncio.Future[Completion] = self._loop.create_future()
        if not self._starts:
            self._loop.call_soon(self._begin_starts, context=self.context)  # not in the starter's context
        workflow = self.workflows[new.code]
        self._starts.append((new, workflow, body, future))
        if self.admission.limited or type(workflow) is not Workflow:
            self.admission.enter(new.queue, workflow)
        return future

    def _begin_starts(self) -> None:
        self._make_room(len(self._starts))
        with self.turns:
            for _ in range(min(_SLICE, len(self._starts))):
                new, workflow, body, future = self._starts.popleft()
                identity = RunIdentity(new.run_id, new.id, new.queue, self.store.namespace, new.chain_id)
                run = self._live(workflow, identity, 1)
                self.runs[new.run_id.int] = run
                try:
                    run.begin(new, body, future)
                except Exception as error:  # noqa: BLE001 - one bad start must not hold up the others
                    run.drop(error)
                except BaseException as error:
                    run.drop(WorkflowBroken(told(error)))  # it is started all the same, and parked when it is claimed
                    if isinstance(error, KeyboardInterrupt):
                        raise
        if self._starts:
            self._loop.call_soon(self._begin_starts)

    def _make_room(self, more: int) -> None:
        runs = len(self.runs) + more
        if runs > self._room.runs and not self.over:  # after the end nothing would give the room back
            self._room.fit(2 * runs)

    def adopt_claimed(self, stored_runs: Sequence[StoredRun]) -> None:
        """Bring runs into memory that the poller has claimed, and the intake expects."""
        self.admission.expect(stored_runs, sign=-1)
        self.adopt_all(stored_runs)

    def adopt_all(self, stored_runs: Sequence[StoredRun]) -> None:
        """Bring claimed runs into memory. All are replayed, and then all go on: the code of both does not fit into the
        processor's cache of instructions, and one run after the other would have it loaded anew for each."""
        early: list[EarlyRun] = []
        replayed: list[tuple[OwnedRun, StoredRun, Replay]] = []
        self._make_room(len(stored_runs))
        with self.turns:
            for stored in stored_runs:
                try:
                    if stored.run.kind is not RunKind.JOB or not self._adopt_early(stored, early):
                        self._adopt(stored, replayed)
                except Exception:
                    log.exception("run %s could not be brought into memory", stored.run.id)
            for run, stored, replay in replayed:
                self._resume(run, stored, replay)
        for run in early:  # not within turns: their code may begin at once
            try:
                run.begin_early()
            except Exception as error:  # noqa: BLE001 - one bad start must not hold up the others
                run.park_or_drop([run.message], error)

    def _live(self, workflow: Workflow[..., Any], identity: RunIdentity, epoch: int) -> OwnedRun:
        if type(workflow) is not Workflow and isinstance(workflow, RoutedCall):
            return CallRun(self, workflow, identity, epoch)
        return OwnedRun(self, workflow, identity, epoch)

    def _adopt_early(self, stored: StoredRun, early: list[EarlyRun]) -> bool:
        """Whether it is a job that may begin at once."""
        row = stored.run
        workflow = self.workflows.get(row.code)
        if not isinstance(workflow, JobWorkflow) or not may_begin_early(workflow, stored):
            return False
        if self.over or self.draining or self.settings.always_replay:
            return False
        run = EarlyRun(self, workflow, stored)
        if self.runs.setdefault(row.run_id.int, run) is not run:
            return False
        self.admission.enter(row.queue, workflow)
        early.append(run)
        return True

    def _adopt(self, stored: StoredRun, replayed: list[tuple[OwnedRun, StoredRun, Replay]]) -> None:
        """Bring a claimed run into memory, and to the end of its journal."""
        row = stored.run
        if self.over:
            return
        identity = RunIdentity(row.run_id, row.id, row.queue, self.store.namespace, row.chain_id)
        run = self._live(self.workflows[row.code or row.name], identity, row.epoch)
        run.claimed(row)
        here = self.runs.setdefault(row.run_id.int, run)
        is_new = here is run
        if not is_new:
            if here.epoch >= row.epoch:
                return
            if not here.leaving:
                here.drop()
            is_new = row.run_id.int not in self.runs  # dropping it takes it out
            self.runs[row.run_id.int] = run
        if is_new and (self.admission.limited or type(run) is not OwnedRun):
            self.admission.enter(row.queue, run.workflow)
        if stored.sealed or (lacks := missing_of(stored)):
            run.park_unread(row.head, stored.sealed or lacks)
            return
        if stored.messages and (pause := pause_of(stored.messages)) is not None:
            run.hold_unread(row.head, pause.name, self.clock.now())
            return
        failpoint("replay.before")
        replay = run.restore(stored.entries)
        if self._replay(run, stored, replay):
            replayed.append((run, stored, replay))

    def _replay(self, run: OwnedRun, stored: StoredRun, replay: Replay) -> bool:
        """Whether it is at the end of its journal: else it will go on by itself, or is parked."""
        if self.over or run.leaving:
            return False
        self.turn = run
        try:
            more = replay.go_on()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, this code cannot go on with this run
            run.park(_why_not_replayed(error))
            return False
        finally:
            self.turn = None
        if more:
            self._hinted.add(run.run_id)  # messages that come meanwhile are not delivered: look for them at the end
            self._loop.call_soon(self._replay_on, run, stored, replay)
        else:
            failpoint("replay.after")
        return not more

    def _replay_on(self, run: OwnedRun, stored: StoredRun, replay: Replay) -> None:
        if self._replay(run, stored, replay):
            self._resume(run, stored, replay)

    def _resume(self, run: OwnedRun, stored: StoredRun, replay: Replay) -> None:
        """It is at the end of its journal: from here on it is live."""
        if self.over or run.leaving:  # dropped meanwhile
            return
        if replay.warnings:
            count, first = len(replay.warnings), replay.warnings[0]
            log.warning(
                "run %s sends other inputs than before, %d times; the first: %s",
                run.identity.id,
                count,
                first,
                extra=run.machine.logged,
            )
        try:
            run.resume(stored.attempts, stored.messages, more=stored.more)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            run.park_or_drop(stored.messages, error)
        if self._hinted and run.run_id in self._hinted:
            self._hinted.discard(run.run_id)
            self._inbox.look_for([run.run_id])

    def go_back(self, run: OwnedRun) -> None:
        self.spawn(self._load_again(run))

    async def _load_again(self, run: OwnedRun) -> None:
        try:
            stored = await self.store.load(run.run_id)
        except BaseException:
            self._loop.call_soon(run.drop)  # the store says that it is ours: it will be adopted
            raise
        self._loop.call_soon(self._replay_again, run, stored)

    def _replay_again(self, run: OwnedRun, stored: StoredRun) -> None:
        if self.over or self.runs.get(run.run_id.int) is not run:
            return
        here = run.epoch, run.durable, self.info.worker_id
        if (stored.run.epoch, stored.run.head, stored.run.owner) != here:
            run.drop()
            return
        if stored.sealed:
            run.park_unread(run.durable, stored.sealed)
            return
        self._replay_on(run, stored, run.go_back(stored.entries))

    def read_page(self, run: OwnedRun, after: int) -> None:
        self.spawn(self._inbox.read_page(run, after))

    def look_after(self, run: OwnedRun, route: Route) -> None:
        run.machine.kinship().unsettled.add(route.seq)  # it stays until that is done: no other worker would look again
        self.spawn(self._look_after(run, route))

    async def _look_after(self, run: OwnedRun, route: Route) -> None:
        try:
            run_id = run.machine.kinship().routed_run_id(route)
            if await end_overdue(self.store, route, run_id, run.now()):
                await self.reporter.closes.tell([run_id])
        except (StoreError, UnknownRun) as error:
            route.look_again(run.now() + SECOND)
            if isinstance(error, StoreError):  # else its call is not durable yet
                raise
        finally:
            run.machine.kinship().unsettled.discard(route.seq)
            self._loop.call_soon(run.call_over)

    # -- news

    def tell(self, run_id: RunId, message: Message) -> None:
        if run_id.int in self.runs:
            self._inbox.tell(run_id, message)
        else:
            self._poller.missed((run_id,))

    def caught_up(self, run: OwnedRun) -> None:
        self._inbox.caught_up(run)

    def _on_hint(self, hint: Hint) -> None:
        if hint.due:
            self._poller.wake()
        if hint.schedules:
            self._scheduler.changed()
        named = hint.messages
        if hint.closed is None and len(self._lingering) <= _SLICE:  # it cannot say what happened: ask for the talkative
            named = [*named, *self._lingering]
        here = [run_id for run_id in named if run_id.int in self.runs]
        if len(here) < len(named):
            self._poller.missed(run_id for run_id in named if run_id.int not in self.runs)
        self._inbox.look_for(here)

    def read_again(self, run_ids: Sequence[RunId]) -> None:
        """Something was sent to these after they were claimed."""
        self._inbox.look_for(run_ids)

    def _on_pulse(self, pulse: Pulse, sent: float, received: float) -> None:
        if self.over:
            return
        if pulse.now:
            self._learn(pulse.now, sent, received)
            self.reporter.renewed(len(pulse.owned), received - sent)
            self.timed_out(pulse.timed_out)
            self._scheduler.learn(pulse.schedule_at)
            self._reconciler.reconcile(pulse, sent)
            self.timers.look()
            self._renewed.set()
            self._renewed.clear()
            self.committer.release()
        if pulse.due_at is not None:
            self._poller.due(pulse.due_at)
        # Of a job that nothing is written of, the start is unread; hints tell of the rest.
        runs = self.runs
        self._inbox.look_for([one for one in pulse.unread if (run := runs.get(one.int)) is not None and not run.early])

    def timed_out(self, run_ids: Sequence[RunId]) -> None:
        """A heartbeat or claim of this worker has closed these."""
        if run_ids:
            self.spawn(self.reporter.closes.tell(run_ids))

    def _learn(self, now: int, sent: float, received: float) -> None:
        """The store's clock was read. If it was set since the last time, waits in memory still count elapsed time."""
        before = self.clock.latest()
        step = self.clock.learn(now, sent, received)
        if step:
            way = "forward" if step > 0 else "back"
            log.warning("the database's clock was set %s by %s", way, human_duration(round(abs(step) / SECOND, 1)))
            for run in self.runs.values():
                run.clock_set(step)
            self.timers.clock_set(step)
            self._poller.wake()
            self._scheduler.changed()
        if step < 0:
            self._set_back = before, -step
        if self._set_back is not None and not self._hastening:
            self._hastening = True
            self.spawn(self._hasten(*self._set_back))

    async def _hasten(self, until: int, back: int) -> None:
        """Have the store find due again what was due until then, before its clock was set back. Of what would sleep on
        for longer by that, take as much as may stay in memory, where it counts elapsed time."""
        try:
            hastened = _HASTENED
            while hastened == _HASTENED:
                hastened = await self.store.hasten(until, _HASTENED)
            await self.store.hasten(until, self.settings.max_runs // 2, asleep=back)
            if self._set_back == (until, back):
                self._set_back = None
            self._poller.wake()
        finally:
            self._hastening = False

    async def read_clock(self) -> int:
        """The store's time. For a store that has no heartbeats, which would tell."""
        sent = self.monotonic()
        now = await self.store.now()
        self._learn(now, sent, self.monotonic())
        return now

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.Task(_logged(work, self.outage), loop=self._loop, context=self.context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # it was never begun when the task was cancelled at once


async def _logged(work: Coroutine[Any, Any, None], outage: Outage) -> None:
    try:
        await work
    except StoreError as error:
        outage.failed(_WORKING, error, holds=False)
    except Exception:
        log.exception("unexpected")


def _why_not_replayed(error: BaseException) -> str:
    """The reason with which a run is parked whose replay ended so."""
    if isinstance(error, PayloadSealed):
        return f"{type(error).__name__}: {error}"
    return str(error) if isinstance(error, WorkflowBroken | InvalidInput) else f"its replay failed: {told(error)}"
