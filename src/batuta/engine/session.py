"""One registration of a worker: what it owns while it is alive, and nothing of it afterwards."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from batuta import failpoints
from batuta.authoring.definitions import Activity, Workflow
from batuta.clock import SECOND, Clock
from batuta.engine.alerts import Alerts
from batuta.engine.around import Around
from batuta.engine.collector import Room
from batuta.engine.committer import Committer
from batuta.engine.completion import Completion
from batuta.engine.dbclock import DatabaseClock
from batuta.engine.executor import Executor
from batuta.engine.identity import RunIdentity
from batuta.engine.intake import Intake
from batuta.engine.jobs import CallRun, EarlyRun, JobWorkflow, may_begin_early
from batuta.engine.lease import Lease
from batuta.engine.live import LiveRun
from batuta.engine.news import News
from batuta.engine.pausing import hold_unread, pause_of
from batuta.engine.poller import Poller
from batuta.engine.replay import Replay
from batuta.engine.reporter import Reporter
from batuta.engine.retention import Pruner
from batuta.engine.routes import Route, RoutedCall, end_overdue, routed_run_id
from batuta.engine.schedules import Scheduler
from batuta.engine.sealed import park_or_drop, park_where_it_was, why_not_replayed
from batuta.engine.strays import Strays
from batuta.engine.timers import Timers
from batuta.engine.transactions import Transactions
from batuta.engine.waiters import Waiters
from batuta.engine.watchdog import Watchdog
from batuta.errors import StoreError, StoreUnavailable, UnknownRun
from batuta.failpoints import failpoint
from batuta.ids import RunId, new_worker_id
from batuta.journal.entries import Body, Command
from batuta.journal.records import Hint, Message, NewRun, Pulse, RunKind, Tape, WorkerInfo
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.settings import Settings
from batuta.telemetry import ActivityCompleted

log = logging.getLogger("batuta.engine")

_SLICE = 128
_TICK = 0.5
_LAST_WORDS = 2.0
"""Seconds that a stop waits for the last details of heartbeats to be durable."""
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
        around: Around | None = None,
    ) -> None:
        self.store, self.workflows, self.settings = store, workflows, settings
        self.clock, self.monotonic = DatabaseClock(clock), clock.monotonic
        self._beats = store.poll_seconds is not None
        self.info = WorkerInfo(
            worker_id=new_worker_id(),
            queues=list(queues),
            code={name: workflow.fingerprint for name, workflow in workflows.items()},
            host=socket.gethostname(),
            pid=os.getpid(),
            lease=round((settings.lease if self._beats else _FOR_EVER) * SECOND),
        )
        self.intake = Intake(self.info, workflows, rooms, settings)
        self.runs: dict[int, LiveRun] = {}  # by the numbers of their run ids: UUIDs hash slowly
        self._on_lost, self.waiters, self.letters = on_lost, waiters, letters
        self._starts: deque[tuple[NewRun, Workflow[..., Any], Body, asyncio.Future[Completion]]] = deque()
        self._lease = Lease(store, self.info, settings, clock, self._on_pulse, self._lost)
        self.may_act, self._timers = self._lease.may_act, Timers(self.clock)
        self.executor = Executor(activities, self.clock, settings, self._lease, self.permission)
        self._committer = Committer(store, self.info.worker_id, settings, self.clock, self.may_act, self._lost)
        self.begins = None if around is None or not around.begin else around.begins
        self.reporter = Reporter(() if around is None else around.ears, self)
        self.listens = self.reporter.listens_to(ActivityCompleted)
        if around is not None:
            around.put_around(self.executor, activities)
            self._committer.report_to(self.reporter)
        # A live run calls them in every turn: without a call of our own in between.
        self.submit, self.arm, self.disarm = self._committer.submit, self._timers.arm, self._timers.disarm
        self.is_writing, self.started = self._committer.is_writing, self._committer.started
        self.submit_end: Callable[[EarlyRun], None] = self._committer.submit
        self.executor.transactions = self._transactions = Transactions(self, self._lost)
        self._poller = Poller(self, self._committer)
        self._scheduler = Scheduler(store, self.clock)
        self._pruner = Pruner(store, self.info.worker_id, settings, clock.monotonic)
        self._watchdog = Watchdog(settings.stuck_turn, self._holding_up, clock)
        self.turn: LiveRun | None = None
        self._hinted: set[RunId] = set()
        self._lingering: set[RunId] = set()
        self._news, self._strays = News(self), Strays(self, self._poller)
        self._tasks: set[asyncio.Task[None]] = set()
        self._emptied, self._renewed = asyncio.Event(), asyncio.Event()
        self._room, self.turns = Room(), self.executor.turns
        self._over = self._hurried = self.draining = False
        self._ticked = clock.monotonic()
        self._ticking: asyncio.TimerHandle | None = None
        self._unlisten: Callable[[], None] = lambda: None

    # -- life

    async def open(self) -> None:
        """Register, and begin to work. When that fails or is cancelled, nothing of it is left."""
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._committer.open(self._context)
        self._poller.open(self._context)
        self.executor.open(self._loop, self._context)
        self._transactions.open(self._loop, self._context)
        try:
            await self._open()
        except BaseException:
            await self._end()
            with suppress(StoreError):
                await self.store.retire(self.info.worker_id)
            raise

    async def _open(self) -> None:
        if self._beats:
            await self._lease.open()
        registered_at = self.monotonic()
        now = await self.store.register(self.info)
        self.clock.learn(now, registered_at, self.monotonic())
        if self._beats:
            self._lease.start(registered_at)
            self._watchdog.start()
            self._tick()
        else:  # one beat, for what beats do besides renewing: revive parked runs, end those over their time
            async with self.store.heart(self.info.worker_id) as heart:
                self._scheduler.learn((await heart.beat(self.info, reap=False)).schedule_at)
        self._unlisten = self.store.listen(self._on_hint)
        self._scheduler.start()
        self._pruner.start()
        await self._poller.start()
        self.reporter.started()

    async def close(self, grace: float) -> None:
        """Hand back what is idle at once, wait for activities in flight, then leave."""
        if self._over:
            return
        self.draining = True
        failpoint("stop.begin")
        await self._scheduler.stop()
        await self._pruner.stop()
        await self._poller.stop()
        for run in list(self.runs.values()):
            run.hand_back_when_draining()
        failpoint("stop.released")
        await self._empty_within(grace)
        self.executor.flush()
        await self._committer.written(_LAST_WORDS)
        await self._end()
        try:
            await self.store.retire(self.info.worker_id)
        except StoreError as error:
            log.warning("could not sign off, others will notice when the lease is over: %s", error)
        self.reporter.stopped()

    def hurry(self) -> None:
        """A stop is under way: do not wait any longer for activities in flight."""
        self._hurried = True
        self._emptied.set()

    async def _empty_within(self, grace: float) -> None:
        self._emptied.clear()
        try:
            async with asyncio.timeout(grace):
                while self.runs and not self._hurried:
                    await self._emptied.wait()
                    self._emptied.clear()
        except TimeoutError:
            if self.runs:
                log.warning("%d runs were still busy after %.0f s and will run elsewhere", len(self.runs), grace)

    async def _end(self) -> None:
        self.abandon()
        if self._beats:
            await self._lease.stop()
            await self._watchdog.stopped()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, self._poller.ended(_LAST_WORDS), return_exceptions=True)
        await self._transactions.ended()

    def abandon(self) -> None:
        """Drop everything at once: none of it is ours any more."""
        if self._over:
            return
        self._over = True
        self._lease.end()
        self._committer.stop()
        self._timers.stop()
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

    async def abandoned(self) -> None:
        """Wait for what `abandon` left behind."""
        await self._end()

    def _lost(self, why: str) -> None:
        if not self._over:
            log.error("worker %s drops everything and registers anew: %s", self.info.worker_id, why)
            self.abandon()
            self.reporter.lost(why)
            self._on_lost(why)

    @property
    def over(self) -> bool:
        """Whether everything was dropped."""
        return self._over

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
        self._ticking = self._loop.call_later(_TICK, self._tick)

    # -- what live runs need

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback, context=self._context)

    def may_linger(self, run: LiveRun) -> bool:
        if run.run_id not in self._lingering:
            if len(self._lingering) >= self.settings.max_runs // 2:  # the other half is for those they wait for
                return False
            self._lingering.add(run.run_id)
        return True

    def finished(self, run: LiveRun, outcome: Command) -> None:
        if self.waiters.waiting:
            self.waiters.settle(run.run_id, (RunState.COMPLETED, outcome))
        self.forget(run, None)

    def forget(self, run: LiveRun, wake_at: int | None) -> None:
        run_id = run.run_id
        there = self.runs.pop(run_id.int, None)
        if there is not run and there is not None:
            self.runs[run_id.int] = there
        elif there is not None:
            if type(run) is not LiveRun or self.intake.limited:
                self.intake.leave(run)
            if self._hinted or self._lingering or self._news.unhurried:  # empty as a rule
                for named in (self._hinted, self._lingering, self._news.unhurried):
                    named.discard(run_id)
            if not self.runs:
                self._emptied.set()
                self._room.fit(0)
            self._poller.freed(wake_at)

    def _holding_up(self) -> str | None:
        """Names what is running on the event loop and should not for long, for the watchdog."""
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
        if workflow is None or self._over or self.draining or self._poller.backlog or queue not in self.info.queues:
            return False
        if len(self.runs) + len(self._starts) >= self.settings.max_runs:
            return False
        if type(workflow) is Workflow and not self.intake.picky:
            return True
        return self.intake.may_start(queue, workflow, self.monotonic, claiming=self._poller.claiming)

    def avoid(self, queue: str) -> None:
        """No start into that queue may be owned, for a while."""
        self.intake.avoid(queue, self.monotonic())

    def start_here(self, new: NewRun, body: Body) -> asyncio.Future[Completion]:
        """Run the first turn and insert the run already owned. The future fails as the start does."""
        future: asyncio.Future[Completion] = self._loop.create_future()
        if not self._starts:
            self._loop.call_soon(self._begin_starts, context=self._context)  # not in the starter's context
        workflow = self.workflows[new.code]
        self._starts.append((new, workflow, body, future))
        if self.intake.limited or type(workflow) is not Workflow:
            self.intake.enter(new.queue, workflow)
        return future

    def _begin_starts(self) -> None:
        self._make_room(len(self._starts))
        with self.turns:
            for _ in range(min(_SLICE, len(self._starts))):
                new, workflow, body, future = self._starts.popleft()
                identity = RunIdentity(new.run_id, new.id, new.queue, self.store.namespace, new.chain_id)
                run = self._live(workflow, identity, 1)
                run.starting = future
                self.runs[new.run_id.int] = run
                try:
                    run.begin(new, body)
                except Exception as error:  # noqa: BLE001 - one bad start must not hold up the others
                    run.drop(error)
        if self._starts:
            self._loop.call_soon(self._begin_starts)

    def _make_room(self, more: int) -> None:
        runs = len(self.runs) + more
        if runs > self._room.runs and not self._over:  # what comes too late is not kept, and nobody would take it back
            self._room.fit(2 * runs)

    def adopt_claimed(self, tapes: Sequence[Tape]) -> None:
        """Bring runs into memory that the poller has claimed, and the intake expects."""
        self.intake.expect(tapes, sign=-1)
        self.adopt_all(tapes)

    def adopt_all(self, tapes: Sequence[Tape]) -> None:
        """Bring claimed runs into memory.

        All are replayed, and then all go on: the code of both does not fit into the processor's cache of instructions,
        and one run after the other would have it loaded anew for each.
        """
        early: list[EarlyRun] = []
        replayed: list[tuple[LiveRun, Tape, Replay]] = []
        self._make_room(len(tapes))
        with self.turns:
            for tape in tapes:
                try:
                    if tape.run.kind is not RunKind.JOB or not self._adopt_early(tape, early):
                        self._adopt(tape, replayed)
                except Exception:
                    log.exception("run %s could not be brought into memory", tape.run.id)
            for run, tape, replay in replayed:
                self._resume(run, tape, replay)
        for run in early:  # not within turns: their code may begin at once
            self._begin_early(run)

    def _live(self, workflow: Workflow[..., Any], identity: RunIdentity, epoch: int) -> LiveRun:
        if type(workflow) is not Workflow and isinstance(workflow, RoutedCall):
            return CallRun(self, workflow, identity, epoch)
        return LiveRun(self, workflow, identity, epoch)

    def _adopt_early(self, tape: Tape, early: list[EarlyRun]) -> bool:
        """Whether it is a job that may begin at once."""
        row = tape.run
        workflow = self.workflows.get(row.code)
        if not isinstance(workflow, JobWorkflow) or not may_begin_early(workflow, tape):
            return False
        if self._over or self.draining or self.settings.always_replay:
            return False
        run = EarlyRun(self, workflow, tape)
        if self.runs.setdefault(row.run_id.int, run) is not run:
            return False
        self.intake.enter(row.queue, workflow)
        early.append(run)
        return True

    def _begin_early(self, run: EarlyRun) -> None:
        try:
            run.begin_early()
        except Exception as error:  # noqa: BLE001 - one bad start must not hold up the others
            park_or_drop(run, [run.message], error)

    def _adopt(self, tape: Tape, replayed: list[tuple[LiveRun, Tape, Replay]]) -> None:
        """Bring a claimed run into memory, and to the end of its tape."""
        row = tape.run
        if self._over:
            return
        identity = RunIdentity(row.run_id, row.id, row.queue, self.store.namespace, row.chain_id)
        run = self._live(self.workflows[row.code or row.name], identity, row.epoch)
        run.deadline, run.created_at = row.deadline, row.created_at
        if row.parent_run_id is not None and row.kind is not RunKind.JOB:
            run.parent = (row.parent_run_id, row.parent_seq)
        here = self.runs.setdefault(row.run_id.int, run)
        is_new = here is run
        if not is_new:
            if here.epoch >= row.epoch:
                return
            if not here.leaving:
                here.drop()
            is_new = row.run_id.int not in self.runs  # dropping it takes it out
            self.runs[row.run_id.int] = run
        if is_new and (self.intake.limited or type(run) is not LiveRun):
            self.intake.enter(row.queue, run.workflow)
        if run.is_call and isinstance(run, CallRun):
            run.batched = row.kind is RunKind.JOB and row.parent_run_id is not None
        if tape.sealed or len(tape.entries) != row.head + 1:
            run.head = run.durable = row.head
            run.park(
                tape.sealed
                or f"its journal has {len(tape.entries)} entries, and its row says {row.head + 1}: restore a backup"
            )
            return
        if tape.messages and (pause := pause_of(tape.messages)) is not None:
            hold_unread(run, tape, pause, self.clock.now())
            return
        if failpoints.armed is not None:
            failpoint("replay.before")
        replay = run.restore(tape.entries)
        if self._replay(run, tape, replay):
            replayed.append((run, tape, replay))

    def _replay(self, run: LiveRun, tape: Tape, replay: Replay) -> bool:
        """Whether it is at the end of its tape: else it will go on by itself, or is parked."""
        if self._over or run.leaving:
            return False
        self.turn = run
        try:
            more = replay.go_on()
        except Exception as error:  # noqa: BLE001 - whatever it is, this code cannot go on with this run
            run.park(why_not_replayed(error))
            return False
        finally:
            self.turn = None
        if more:
            self._hinted.add(run.run_id)  # messages that come meanwhile are not delivered: look for them at the end
            self._loop.call_soon(self._replay_on, run, tape, replay)
        elif failpoints.armed is not None:
            failpoint("replay.after")
        return not more

    def _replay_on(self, run: LiveRun, tape: Tape, replay: Replay) -> None:
        if self._replay(run, tape, replay):
            self._resume(run, tape, replay)

    def _resume(self, run: LiveRun, tape: Tape, replay: Replay) -> None:
        """It is at the end of its tape: from here on it is live."""
        if self._over or run.leaving:  # dropped meanwhile
            return
        if replay.warnings:
            count, first = len(replay.warnings), replay.warnings[0]
            log.warning("run %s sends other inputs than before, %d times; the first: %s", run.identity.id, count, first)
        try:
            if run.deadline is not None and run.deadline <= self.clock.now():
                run.ready = True
                run.wake(self.clock.now())
            else:
                run.resume(tape.attempts, tape.messages)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            park_or_drop(run, tape.messages, error)
        if self._hinted and run.run_id in self._hinted:
            self._hinted.discard(run.run_id)
            self._news.look_for([run.run_id])

    def go_back(self, run: LiveRun) -> None:
        self.spawn(self._load_again(run))

    async def _load_again(self, run: LiveRun) -> None:
        try:
            tape = await self.store.load(run.run_id)
        except BaseException:
            self._loop.call_soon(run.drop)  # the store says that it is ours: it will be adopted
            raise
        self._loop.call_soon(self._replay_again, run, tape)

    def _replay_again(self, run: LiveRun, tape: Tape) -> None:
        if self._over or self.runs.get(run.run_id.int) is not run:
            return
        if (tape.run.epoch, tape.run.head) != (run.epoch, run.durable):
            run.drop()
            return
        if tape.sealed:
            park_where_it_was(run, tape)
            return
        self._replay_on(run, tape, run.go_back(tape.entries))

    def look_after(self, run: LiveRun, route: Route) -> None:
        run.machine.kinship().unsettled.add(route.seq)  # it stays until that is done: nobody else would look again
        self.spawn(self._look_after(run, route))

    async def _look_after(self, run: LiveRun, route: Route) -> None:
        try:
            await end_overdue(self.store, route, routed_run_id(run.machine, route), self.clock.now())
        except (StoreError, UnknownRun) as error:
            route.check_at = self.clock.now() + SECOND
            if isinstance(error, StoreError):  # else its call is not durable yet
                raise
        finally:
            run.machine.kinship().unsettled.discard(route.seq)
            self._loop.call_soon(run.call_over)

    # -- news

    def tell(self, run_id: RunId, message: Message) -> None:
        if run_id.int in self.runs:
            self._news.tell(run_id, message)
        else:
            self._poller.missed((run_id,))

    def caught_up(self, run: LiveRun) -> None:
        self._news.caught_up(run)

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
        self._news.look_for(here)

    def read_again(self, run_ids: Sequence[RunId]) -> None:
        """Something was sent to these after they were claimed."""
        self._news.look_for(run_ids)

    def _on_pulse(self, pulse: Pulse, sent: float, received: float) -> None:
        if self._over:
            return
        if pulse.now:
            self.clock.learn(pulse.now, sent, received)
            self._scheduler.learn(pulse.schedule_at)
            self._strays.reconcile(pulse, sent)
            self._timers.look()
            self._renewed.set()
            self._renewed.clear()
            self._committer.release()
        if pulse.due_at is not None:
            self._poller.due(pulse.due_at)
        # Of a job that nothing is written of, the start is unread; hints tell of the rest.
        runs = self.runs
        self._news.look_for([one for one in pulse.unread if (run := runs.get(one.int)) is not None and not run.early])

    def spawn(self, work: Any) -> None:
        task = asyncio.Task(_logged(work), loop=self._loop, context=self._context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _logged(work: Any) -> None:
    try:
        await work
    except StoreError as error:
        log.warning("will be tried again at the next heartbeat: %s", error)
    except Exception:
        log.exception("unexpected")
