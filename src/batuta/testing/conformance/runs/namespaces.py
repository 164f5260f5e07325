"""Namespaces share the tables, and nothing else: also where two of them have runs of the same run ids.

Every verb of the store has a line in `VERBS`, so that a new verb fails here until it has one, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct
from msgspec.structs import replace

from batuta.clock import SECOND
from batuta.errors import BadData, BatutaError
from batuta.ids import RunId, new_run_id
from batuta.journal.audit import Act, ActFilter, Verb
from batuta.journal.bus.messages import Begun, BusStore, Delivery, NewMessage, SubscriptionRow
from batuta.journal.dead_letters import LetterFilter
from batuta.journal.entries import Body, EntryKind, encode_entry
from batuta.journal.flows.records import (
    EventFilter,
    EventRow,
    FlowFilter,
    FlowRow,
    FlowRunFilter,
    FlowStart,
    NewEvent,
)
from batuta.journal.flows.store import FlowStore
from batuta.journal.forks import Fork
from batuta.journal.queues import QueueLimits
from batuta.journal.quotas import OPEN_RUNS, STARTS, Quota
from batuta.journal.records import (
    Attempt,
    Effects,
    LetterReason,
    Message,
    MessageKind,
    Move,
    NewLetter,
    NewRun,
    Output,
    OutputKind,
    Refusal,
    RunFilter,
    Successor,
    WorkerInfo,
)
from batuta.journal.reencryption import Rewrite
from batuta.journal.resilience.partners import LIMIT, PartnerChange, PartnerRule, PartnerStore, gate_reason
from batuta.journal.retention import Retention
from batuta.journal.schedules import Firing, ScheduleRow
from batuta.journal.server.api_keys import KeyStore, StoredKey
from batuta.journal.server.documents import DocumentStore
from batuta.journal.server.requests import RequestStore
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, Pen, claimed, live_worker, new_run, outlive_lease, signal

OWN, OTHER = "acme", "acme/eu"
ROLES = ("held", "kid", "done", "parked", "paused", "ready", "asleep")
EVERYTHING = RunFilter()
HOUR = 3600 * SECOND
ACT = Act(actor="eve", verb=Verb.CANCEL, reason="to see")


class Scene(Struct):
    """A namespace with something in every table."""

    store: Store
    worker: WorkerInfo
    ids: dict[str, RunId]
    """Run ids by role. Those of two scenes may be the same."""
    pens: dict[str, Pen]

    @property
    def word(self) -> str:
        """Stands in every payload of this scene, and in none of another."""
        return f"<{self.store.namespace}>"

    @property
    def all(self) -> list[RunId]:
        return list(self.ids.values())


def quoted(text: str) -> str:
    return f'"{text}"'


def plan() -> dict[str, RunId]:
    return {role: new_run_id() for role in ROLES}


async def owned(scene: Scene, role: str, **parts: Any) -> Pen:
    """A run that the scene's worker has begun."""
    pen = scene.pens[role] = Pen(scene.ids[role], epoch=1)
    run = new(scene, role)
    assert await pen.write(scene.store, scene.worker, start=run, text=scene.word, **parts) is None
    return pen


def new(scene: Scene, role: str, **options: Any) -> NewRun:
    given: dict[str, Any] = {"start": f'{{"value":["{scene.word}"]}}', "memo": quoted(scene.word)}
    return replace(new_run(role, **(given | options)), run_id=scene.ids[role])


async def furnish(store: Store, ids: dict[str, RunId]) -> Scene:
    """Fill every table of a namespace."""
    scene = Scene(store, await live_worker(store, lease=HOUR), ids, {})
    word, worker = scene.word, scene.worker
    tried = Attempt(seq=1, number=1, started_at=5, outside=True, details=quoted(word), tokens="00")
    published = Output(kind=OutputKind.PUBLISHED, name="progress", ord=0, at=5, value=quoted(word))
    answer = Output(kind=OutputKind.ANSWER, name="ask", ord=0, at=5, value=quoted(word))
    kid = new(scene, "kid", parent_run_id=ids["held"], parent_seq=1, queue="elsewhere")
    effects = Effects(outputs=[published, answer], children=[kid])
    await owned(scene, "held", attempts=[tried], effects=effects)
    for message_id in ("read", "unread"):
        await store.send(ids["held"], signal(message_id, quoted(word)))
    await scene.pens["held"].write(store, worker, consumed=["read"], text=word)
    letter = NewLetter(reason=LetterReason.EXHAUSTED, error="Boom", message=word, fingerprint="f")
    done = await owned(scene, "done", attempts=[replace(tried, outside=False, error=quoted(word))])
    assert (
        await done.write(store, worker, text=word, move=Move(RunState.FAILED), effects=Effects(letter=letter)) is None
    )
    parked = await owned(scene, "parked")
    assert await parked.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, reason=word)) is None
    await store.start(new(scene, "paused"))
    assert await store.pause_runs([ids["paused"]], replace(ACT, verb=Verb.PAUSE, reason=word)) == [ids["paused"]]
    await store.start(new(scene, "ready"))
    asleep = Move(RunState.WAITING, await store.now() + HOUR, gate_reason("bank"))
    await (await owned(scene, "asleep")).write(store, worker, move=asleep)
    await store.put_schedule(ScheduleRow(id="nightly", spec=quoted(word), next_at=7))
    await store.limit_queue("limited", QueueLimits(concurrency=2))
    await store.pause_queue("limited", True, word)
    await store.set_retention(Retention(10**8, "flow", "failed"))
    await store.set_quota(Quota(name=OPEN_RUNS, limit=1_000))
    await store.set_quota(Quota(name=STARTS, limit=5))
    await store.set_mark("said", word)
    await store.put_api_key(api_key(f"key of {store.namespace}", word))
    await store.begin_request("asked", "d", word, HOUR, HOUR)
    await store.put_documents("k", {"a": word}, HOUR)
    await change_partner(scene)
    assert await store.put_flow(flow_row(word, is_active=True, published_at=5))
    first = replace(new(scene, "ready"), run_id=new_run_id(), id="of the first event", flow_key="k")
    begun = FlowStart(FLOW, first, 5)
    await store.accept_events([NewEvent(event=event_row(word), starts=[begun])])
    await store.accept_events([NewEvent(event=event_row(word, event_id=UUID(int=9), external_id="old"))])
    await store.put_subscription(SubscriptionRow(name="mail", topic="orders"))
    await publish(scene, "old")
    [delivery] = (await store.bus_turn(["mail"], [], 10)).deliveries
    await store.bus_turn(["mail"], [begun_as(delivery, ids["held"])], 10)
    await publish(scene, "new")
    return scene


def begun_as(delivery: Delivery, run_id: RunId) -> Begun:
    return Begun(subscription=delivery.subscription, number=delivery.number, run_id=run_id)


async def publish(scene: Scene, id: str) -> object:
    made = [NewMessage(topic="orders", id=id, body=quoted(scene.word), via=via) for via in ("", "broker")]
    made[1].id += "er"
    return await scene.store.publish_messages(made)


async def bus_turn(scene: Scene) -> object:
    numbers = range(3_000)
    begun = [Begun(subscription="mail", number=number, run_id=scene.ids["done"]) for number in numbers]
    return [
        (one.id, one.body)
        for turn in (await scene.store.bus_turn(["mail"], [], 10), await scene.store.bus_turn(["mail"], begun, 10))
        for one in turn.deliveries
    ]


async def sent_messages(scene: Scene) -> object:
    await scene.store.sent_messages(range(3_000))
    return None


async def messages(scene: Scene) -> object:
    store = scene.store
    found = [await store.messages("orders"), await store.messages(None), await store.unsent_messages("broker", 10)]
    return [[(one.id, one.body) for one in page] for page in found]


async def bus_status(scene: Scene) -> object:
    status = await scene.store.bus_status()
    topics = [(one.name, one.messages, one.unsent) for one in status.topics]
    return topics, [(one.name, one.waiting, one.running) for one in status.subscriptions]


async def prune_messages(scene: Scene) -> object:
    scene.store.shift_clock(3600)
    await scene.store.drop_subscription("mail")
    return await scene.store.prune_messages(60 * SECOND, 100)


async def change_partner(scene: Scene) -> object:
    return (await scene.store.change_partner(LIMIT, "bank", "k", _marked(scene.word))).answer


def _marked(word: str) -> PartnerRule[str | None]:
    return lambda docs: PartnerChange(docs.doc, (docs.doc or "") + word)


def api_key(id: str, word: str) -> StoredKey:
    return StoredKey(id=id, namespace="", name=word, scope="admin", digest="0" * 64)


async def seen(scene: Scene) -> dict[str, Any]:
    """All that its owner can read of it."""
    store = scene.store
    found: dict[str, Any] = {
        "runs": (await store.list_runs(EVERYTHING)).runs,
        "letters": (await store.letters(LetterFilter(states=()))).letters,
        "groups": (await store.letter_groups(LetterFilter(states=()))).groups,
        "schedules": await store.schedules(),
        "queues": await store.queues(),
        "retention": await store.retention(),
        "quotas": await store.quotas(),
        "marks": await store.marks(),
        "api_keys": await store.api_keys(),
        "partners": await store.partners(keys=True),
        "request": await store.begin_request("asked", "another", "whoever", HOUR, HOUR),
        "documents": [(one.key, one.body) for one in await store.documents("k")],
        "audit": (await store.audit(), await store.audit_head()),
        "flows": await store.flows(FlowFilter()),
        "events": await store.events(EventFilter()),
        "flow_runs": await store.flow_runs(FlowRunFilter(workflow_id=FLOW)),
        "bus": (await messages(scene), await bus_status(scene)),
        "workers": [(one.worker_id, one.live) for one in await store.workers()],
        "unread": await store.unread(scene.all),
    }
    for role, run_id in scene.ids.items():
        found[role] = (
            await attempted(store.load(run_id)),
            await attempted(store.outcome(run_id)),
            await store.journal(run_id),
            await store.epochs(run_id),
            await store.attempts(run_id),
            await store.outputs(run_id),
            await store.answers([(run_id, "ask")]),
            await store.inbox(run_id),
            await store.received(run_id),
            await store.answers_of(run_id),
        )
    return found


async def attempted(call: Awaitable[Any]) -> Any:
    """What it gives, or the error that it raises."""
    try:
        return await call
    except BatutaError as error:
        return repr(error)


def nothing_left_out(_: Sequence[Refusal]) -> None:
    """Refusals are fine."""


# -- what the verbs are given: a scene, with the run ids of another namespace


async def commit(scene: Scene) -> object:
    held = scene.pens["held"]
    tried = Attempt(seq=1, number=1, started_at=9, error=quoted(scene.word))
    answer = Output(kind=OutputKind.ANSWER, name="ask", ord=1, at=9, value=quoted(scene.word))
    published = Output(kind=OutputKind.PUBLISHED, name="progress", ord=1, at=9, value=quoted(scene.word))
    change = held.change(text=scene.word, consumed=["unread"], attempts=[tried])
    change.effects = Effects(outputs=[answer, published])
    return await scene.store.commit(scene.worker.worker_id, [change])


async def end(scene: Scene) -> object:
    """Once with a message unread, and once not."""
    held = scene.pens["held"]
    given = [scene.worker.worker_id, [held.change(text=scene.word, move=Move(RunState.COMPLETED, children=True))]]
    first = await scene.store.commit(*given)  # type: ignore[arg-type]
    change = held.change(text=scene.word, consumed=["unread"], move=Move(RunState.COMPLETED, children=True))
    return first, await scene.store.commit(scene.worker.worker_id, [change])


async def begin(scene: Scene) -> object:
    """A new run with an id that the other namespace has."""
    run = replace(new(scene, "done"), id="again")
    change = Pen(run.run_id, epoch=1).change(start=run, text=scene.word)
    return await scene.store.commit(scene.worker.worker_id, [change])


async def hand_over(scene: Scene) -> object:
    change = scene.pens["held"].change(text=scene.word, consumed=["unread"], move=Move(RunState.COMPLETED))
    return await scene.store.hand_over(scene.worker, [change], 5)


async def transact(scene: Scene) -> object:
    transaction = scene.store.transact(2.0)
    await transaction.begin()
    return await transaction.commit(
        scene.worker.worker_id, scene.pens["held"].change(text=scene.word), nothing_left_out
    )


async def beat(scene: Scene) -> object:
    """Of a worker that reaps the dead, also those that it is told of."""
    await outlive_lease(scene.store)
    worker = await live_worker(scene.store)
    async with scene.store.heartbeat(worker.worker_id) as heartbeat:
        return await heartbeat.beat(worker, reap=True), await heartbeat.beat(worker, reap=True)


async def close_run(scene: Scene) -> object:
    held = scene.pens["held"]
    last = held.last
    assert last is not None
    entry = encode_entry(held.head + 1, EntryKind.TERMINATED, last.at + 1, Body(reason=scene.word), last.crc)
    return await scene.store.close_run(held.run_id, held.head, entry, RunState.TERMINATED, scene.word, ACT)


async def fork(scene: Scene) -> object:
    found = []
    for role in ("done", "held"):
        pen = scene.pens[role]
        made = Successor(run_id=new_run_id(), name="flow")
        one = Fork(source=pen.run_id, head=pen.head, new=made, keep=0, id=f"fork of {role}", again=["read"])
        found += await scene.store.fork([one], replace(ACT, verb=Verb.FORK))
    return [await scene.store.load(one.run_id) for one in found if not isinstance(one, BatutaError)]


async def fork_in_place(scene: Scene) -> object:
    pen = scene.pens["done"]
    made = Successor(run_id=new_run_id(), name="flow")
    one = Fork(source=pen.run_id, head=pen.head, new=made, keep=0, letter=True)
    return await scene.store.fork([one], replace(ACT, verb=Verb.FORK))


async def rewrite(scene: Scene) -> object:
    done, word = scene.pens["done"], quoted(scene.word + "!")
    assert done.last is not None
    return await scene.store.rewrite(
        Rewrite(
            run_id=done.run_id,
            entries=[replace(done.last, body=word)],
            attempts=[Attempt(seq=1, number=1, started_at=5, error=word)],
            messages=[Message(message_id="start", kind=MessageKind.START, body=word)],
            memo=word,
            letter=word,
        )
    )


async def start(scene: Scene) -> object:
    """With the run id of another namespace's run."""
    return await scene.store.start(replace(new(scene, "ready"), id="mine"), signal("with it", quoted(scene.word)))


async def start_many(scene: Scene) -> object:
    runs = [replace(new(scene, role), id=f"mine {role}") for role in ROLES]
    return await scene.store.start_many(runs, replace(new_run("last"), parent_run_id=None))


async def fire(scene: Scene) -> object:
    rows = await scene.store.schedules()
    starts = [replace(new(scene, "ready"), id="slot")]
    return await scene.store.fire(
        [
            Firing(id=row.schedule.id, revision=row.schedule.revision, next_at=9, state="{}", starts=starts)
            for row in rows
        ]
    )


async def update_again(scene: Scene) -> object:
    """An update that was rejected comes once more."""
    held = scene.pens["held"]
    asked = Message(message_id="ask", kind=MessageKind.UPDATE, name="ask", body=quoted(scene.word))
    rejected = Output(kind=OutputKind.ANSWER, name="ask", ord=-1, at=5, error="{}")
    first = await attempted(scene.store.send(held.run_id, asked))
    change = held.change(0, consumed=["ask"], effects=Effects(outputs=[rejected]))
    said = await scene.store.commit(scene.worker.worker_id, [change])
    return first, said, await attempted(scene.store.send(held.run_id, asked))


async def prune(scene: Scene) -> object:
    await scene.store.drop_retention("flow", "failed")
    await scene.store.set_retention(Retention(60))
    await scene.store.discard_letters(scene.all, replace(ACT, verb=Verb.DISCARD))
    scene.store.shift_clock(3600)
    return await scene.store.prune(100), await scene.store.prune(100)


async def hasten(scene: Scene) -> object:
    return await scene.store.hasten(await scene.store.now() + 2 * HOUR, 100)


async def delete(scene: Scene) -> object:
    gone = await scene.store.terminate_runs(scene.all, scene.word, replace(ACT, verb=Verb.TERMINATE))
    return gone, await scene.store.delete_runs(scene.all, replace(ACT, verb=Verb.DELETE))


async def rewrite_api_key(scene: Scene) -> object:
    """That of the other namespace, and its own."""
    for name in (OWN, scene.store.namespace):
        await scene.store.rewrite_api_key(f"key of {name}", "1" * 64)
    return [one.digest for one in await scene.store.api_keys()]


async def revoke_api_key(scene: Scene) -> object:
    """That of the other namespace, and its own."""
    names = (OWN, scene.store.namespace)
    return [await scene.store.revoke_api_key(f"key of {name}", 0, ACT) for name in names]


async def document(scene: Scene) -> object:
    found = await scene.store.document("k", "a")
    return found and found.body


async def documents(scene: Scene) -> object:
    return [one.body for one in await scene.store.documents("k")]


FLOW, EVENT = UUID(int=1), UUID(int=2)
"""The same in every namespace."""


def flow_row(word: str, **more: Any) -> FlowRow:
    given: dict[str, Any] = {"workflow_id": FLOW, "name": "reminder", "document": quoted(word)} | more
    return FlowRow(trigger_type="happened", **given)


def event_row(word: str, **more: Any) -> EventRow:
    given: dict[str, Any] = {"event_id": EVENT, "external_id": "1", "payload": quoted(word)} | more
    return EventRow(type="happened", source="api", **given)


async def accept_events(scene: Scene) -> object:
    """One that the other namespace has, by its id and by its name, and a new one with a run."""
    run = replace(new(scene, "done"), run_id=new_run_id(), id="of an event", flow_key="k")
    made = event_row(scene.word, event_id=new_run_id(), external_id=None)
    accepted = await scene.store.accept_events(
        [
            NewEvent(event=event_row(scene.word)),
            NewEvent(event=event_row(scene.word, event_id=UUID(int=3))),
            NewEvent(event=made, flows=[FLOW], starts=[FlowStart(FLOW, run, 5)]),
        ]
    )
    return [(one.event.payload, one.is_new, one.is_stale) for one in accepted]


async def start_flow_run(scene: Scene) -> object:
    """An event that has begun one, and one that has not."""
    other = FlowStart(UUID(int=4), replace(new(scene, "done"), run_id=new_run_id(), id="by hand"))
    known = await scene.store.start_flow_run(EVENT, FlowStart(FLOW, other.run))
    return known, (await scene.store.start_flow_run(EVENT, other))[1]


async def prune_events(scene: Scene) -> object:
    scene.store.shift_clock(5)
    return await scene.store.prune_events(SECOND, 10)


def acts(verb: Verb) -> Act:
    return replace(ACT, verb=verb)


VERBS: dict[str, Sequence[Callable[[Scene], Awaitable[object]]]] = {
    "start": [start],
    "start_many": [start_many],
    "send": [lambda s: s.store.send(s.ids["held"], signal("new", quoted(s.word)), ACT), update_again],
    "unpark": [lambda s: s.store.unpark(s.ids["parked"], ACT)],
    "register": [lambda s: s.store.register(s.worker)],
    "retire": [lambda s: s.store.retire(s.worker.worker_id)],
    "give_up": [lambda s: s.store.give_up(s.worker.worker_id, s.all, s.word)],
    "heartbeat": [beat],
    "claim": [lambda s: claimed(s.store, s.worker)],
    "hasten": [hasten],
    "due_at": [lambda s: s.store.due_at(s.worker)],
    "unread": [lambda s: s.store.unread(s.all), lambda s: s.store.unread(s.all, after=1)],
    "load": [lambda s: s.store.load(s.ids["held"]), lambda s: s.store.load(s.ids["parked"])],
    "commit": [commit, end, begin],
    "hand_over": [hand_over],
    "transact": [transact],
    "close_run": [close_run],
    "pause_runs": [lambda s: s.store.pause_runs(s.all, acts(Verb.PAUSE))],
    "resume_runs": [lambda s: s.store.resume_runs(s.all, acts(Verb.RESUME))],
    "cancel_runs": [lambda s: s.store.cancel_runs(s.all, s.word, acts(Verb.CANCEL))],
    "end_unbegun": [lambda s: s.store.end_unbegun(s.all, s.word)],
    "terminate_runs": [lambda s: s.store.terminate_runs(s.all, s.word, acts(Verb.TERMINATE))],
    "delete_runs": [delete, lambda s: s.store.delete_runs(s.all, acts(Verb.DELETE))],
    "fork": [fork, fork_in_place],
    "letter": [lambda s: s.store.letter(s.ids["done"])],
    "letters": [lambda s: s.store.letters(LetterFilter(states=()))],
    "letter_groups": [lambda s: s.store.letter_groups(LetterFilter(states=()))],
    "count_letters": [lambda s: s.store.count_letters(LetterFilter(states=()))],
    "discard_letters": [lambda s: s.store.discard_letters(s.all, acts(Verb.DISCARD))],
    "set_retention": [lambda s: s.store.set_retention(Retention(3600, "flow", "failed"), ACT)],
    "drop_retention": [lambda s: s.store.drop_retention("flow", "failed", ACT)],
    "retention": [lambda s: s.store.retention()],
    "prune": [prune],
    "set_quota": [lambda s: s.store.set_quota(Quota(name=OPEN_RUNS, limit=1), ACT)],
    "clear_quota": [lambda s: s.store.clear_quota(OPEN_RUNS, ACT)],
    "quotas": [lambda s: s.store.quotas()],
    "spend_starts": [lambda s: s.store.spend_starts(5, Quota(name=STARTS, limit=5))],
    "set_mark": [lambda s: s.store.set_mark("said", s.word + "!", ACT)],
    "clear_mark": [lambda s: s.store.clear_mark("said", ACT)],
    "marks": [lambda s: s.store.marks()],
    "put_api_key": [lambda s: s.store.put_api_key(api_key(f"new key of {s.store.namespace}", s.word), ACT)],
    "rewrite_api_key": [rewrite_api_key],
    "api_keys": [lambda s: s.store.api_keys()],
    "revoke_api_key": [revoke_api_key],
    "begin_request": [lambda s: s.store.begin_request("asked", "d", s.word, HOUR, HOUR)],
    "finish_request": [lambda s: s.store.finish_request("asked", s.word, quoted(s.word))],
    "renew_request": [lambda s: s.store.renew_request("asked", s.word, HOUR)],
    "find_request": [lambda s: s.store.find_request("asked")],
    "list_requests": [lambda s: s.store.list_requests("", 10)],
    "clear_request": [lambda s: s.store.clear_request("asked")],
    "drop_request": [lambda s: s.store.drop_request("asked", s.word)],
    "put_documents": [lambda s: s.store.put_documents("k", {"b": s.word}, HOUR, ACT)],
    "rewrite_document": [lambda s: s.store.rewrite_document("k", "a", s.word, s.word + "!")],
    "document": [document],
    "documents": [documents],
    "put_flow": [lambda s: s.store.put_flow(flow_row(s.word, workflow_id=UUID(int=5), version=2, is_active=True))],
    "flow": [lambda s: s.store.flow(FLOW)],
    "flows": [lambda s: s.store.flows(FlowFilter())],
    "changed_flows": [lambda s: s.store.changed_flows(0)],
    "active_flows": [lambda s: s.store.active_flows("happened")],
    "accept_events": [accept_events],
    "start_flow_run": [start_flow_run],
    "event": [lambda s: s.store.event(EVENT)],
    "events": [lambda s: s.store.events(EventFilter())],
    "rewrite_events": [lambda s: s.store.rewrite_events([event_row(s.word + "!")])],
    "flow_runs": [
        lambda s: s.store.flow_runs(FlowRunFilter(workflow_id=FLOW)),
        lambda s: s.store.flow_runs(FlowRunFilter(event_ids=(EVENT,))),
    ],
    "prune_events": [prune_events],
    "counted_runs": [lambda s: s.store.counted_runs("k")],
    "open_runs": [lambda s: s.store.open_runs("p", 9)],
    "publish_messages": [lambda s: publish(s, "another")],
    "put_subscription": [lambda s: s.store.put_subscription(SubscriptionRow(name="books", topic="orders"))],
    "drop_subscription": [lambda s: s.store.drop_subscription("mail", ACT)],
    "bus_turn": [bus_turn],
    "unsent_messages": [messages],
    "sent_messages": [sent_messages],
    "bus_status": [bus_status],
    "messages": [messages],
    "rewrite_messages": [lambda s: s.store.rewrite_messages(dict.fromkeys(range(3_000), quoted(s.word + "!")))],
    "prune_messages": [prune_messages],
    "change_partner": [change_partner],
    "partners": [lambda s: s.store.partners(keys=True)],
    "wake_gate": [lambda s: s.store.wake_gate("bank", 10)],
    "note_act": [lambda s: s.store.note_act("held", ACT)],
    "audit": [lambda s: s.store.audit()],
    "audit_head": [lambda s: s.store.audit_head()],
    "acts": [lambda s: s.store.acts(ActFilter(target="paused"))],
    "inbox": [lambda s: s.store.inbox(s.ids["held"])],
    "answers_of": [lambda s: s.store.answers_of(s.ids["held"])],
    "rewrite": [rewrite],
    "limit_queue": [lambda s: s.store.limit_queue("limited", QueueLimits(concurrency=9), act=ACT)],
    "pause_queue": [lambda s: s.store.pause_queue("limited", False, act=ACT)],
    "queues": [lambda s: s.store.queues()],
    "put_schedule": [lambda s: s.store.put_schedule(ScheduleRow(id="hourly", spec=quoted(s.word)))],
    "delete_schedule": [lambda s: s.store.delete_schedule("nightly", ACT)],
    "schedule": [lambda s: s.store.schedule("nightly")],
    "schedules": [lambda s: s.store.schedules()],
    "due_schedules": [lambda s: s.store.due_schedules(9)],
    "schedule_at": [lambda s: s.store.schedule_at()],
    "fire": [fire],
    "get": [lambda s: s.store.get("held")],
    "get_run": [lambda s: s.store.get_run(s.ids["parked"])],
    "journal": [lambda s: s.store.journal(s.ids["held"])],
    "epochs": [lambda s: s.store.epochs(s.ids["held"])],
    "attempts": [lambda s: s.store.attempts(s.ids["held"]), lambda s: s.store.attempts(s.ids["held"], 1)],
    "outputs": [lambda s: s.store.outputs(s.ids["held"])],
    "answers": [lambda s: s.store.answers([(s.ids["held"], "ask")])],
    "received": [lambda s: s.store.received(s.ids["held"])],
    "closed_among": [lambda s: s.store.closed_among(s.all)],
    "outcome": [lambda s: s.store.outcome(s.ids["done"])],
    "list_runs": [
        lambda s: s.store.list_runs(RunFilter(parent=s.ids["held"])),
        lambda s: s.store.list_runs(EVERYTHING),
    ],
    "count_runs": [lambda s: s.store.count_runs(RunFilter(parent=s.ids["held"]))],
    "count_states": [lambda s: s.store.count_states(RunFilter(parent=s.ids["held"]))],
    "gauges": [lambda s: s.store.gauges()],
    "workers": [lambda s: s.store.workers()],
}
"""Each verb with the run ids of a scene."""

ABOUT_NO_ROW = {"namespace", "poll_seconds", "hands_over", "open", "close", "migrate", "now", "keyed"} | {
    "why_not_transactional",
    "shift_clock",
    "find_api_key",  # the holder of a key need not know its namespace
    "has_api_keys",
    "note_api_key",
    "known_namespaces",  # of the whole database: the server shows them to admins of all of them
    "listen",  # a hint names runs by their ids, and tests of hints say that those of others are not heard of
    "enter",  # gives a Guest, and
    "borrow",  # a Borrowed: transactions of drivers, which have tests of their own
}

_GROUPS = 8
"""So many tests share the verbs: each fills the tables once for all of its own."""


async def refuses_namesakes(store: Store, run_id: RunId) -> bool:
    """A store may have each run id once, in all namespaces. Then no namespace begins a run with that of another."""
    try:
        await store.start(replace(new_run("namesake"), run_id=run_id))
    except BadData:
        return True
    return False


def verbs_of_stores() -> set[str]:
    parts = (Store, KeyStore, RequestStore, DocumentStore, PartnerStore, FlowStore, BusStore)
    return {name for part in parts for name in (*vars(part), *part.__annotations__) if not name.startswith("_")}


class TenantsConformance:
    """A namespace that knows the run ids of another reaches none of its rows."""

    def test_every_verb_of_the_store_is_tried(self) -> None:
        assert verbs_of_stores() == set(VERBS) | ABOUT_NO_ROW

    @pytest.mark.parametrize("group", range(_GROUPS))
    async def test_a_verb_with_the_run_ids_of_another_namespace_finds_nothing(
        self, make_store: MakeStore, group: int
    ) -> None:
        theirs = await furnish(await make_store(OWN), plan())
        before = await seen(theirs)
        for number, verb in enumerate(list(VERBS)[group::_GROUPS]):
            store = await make_store(f"{OTHER}/{number}")
            for line in VERBS[verb]:
                mine = Scene(store, await live_worker(store), theirs.ids, dict(theirs.pens))
                answer = await attempted(line(mine))
                assert theirs.word not in repr(answer), verb
                assert await seen(theirs) == before, verb
            await store.close()

    @pytest.mark.parametrize("group", range(_GROUPS))
    async def test_a_verb_on_runs_with_namesakes_in_another_namespace_is_about_its_own_alone(
        self, make_store: MakeStore, group: int
    ) -> None:
        theirs = await furnish(await make_store(OWN), plan())
        before = await seen(theirs)
        if await refuses_namesakes(await make_store(OTHER), theirs.ids["ready"]):
            assert await seen(theirs) == before
            return
        for verb in list(VERBS)[group::_GROUPS]:
            for number, line in enumerate(VERBS[verb]):
                mine = await furnish(await make_store(f"{OTHER}/{verb}/{number}"), theirs.ids)
                untouched = await seen(mine)
                answer = await attempted(line(mine))
                after = await seen(mine)
                assert answer or after != untouched, f"{verb} shows nothing: it did nothing here"
                assert theirs.word not in repr((answer, after)), verb
                assert await seen(theirs) == before, verb
                await mine.store.close()
