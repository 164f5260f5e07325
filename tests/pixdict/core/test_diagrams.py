"""Each sequence diagram of document D, by its number: statuses, texts and headers, over real sockets and PostgreSQL."""

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial

import pytest

from batuta.bus import Message, subscribe
from batuta.server import Refused
from batuta.testing.servers import PostgresServer
from pixdict.bridge import BridgeSettings
from pixdict.caches import CachedEntry
from pixdict.connect.database import open_database
from pixdict.connect.keys import AuditUnavailable, KeyTables
from pixdict.connect.keys.models import NOT_COMPENSATED, How, Outcome
from pixdict.connect.keys.tables import ChangedTables
from pixdict.core import LIMITS, service
from pixdict.core.outcomes import refusal_of
from pixdict.errors import DatabaseTimeout
from tests.pixdict.core.kit import TRACE, claim, eventually, key, settings
from tests.pixdict.core.kit import account as json_account
from tests.pixdict.directory.kit import PHONE, A, account

TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
NUMBERS = [f"+551190000000{digit}" for digit in range(10)]


@asynccontextmanager
async def alerts(s):
    """What comes to the topic core-events."""
    found = []

    async def hear(message: Message[dict]) -> None:
        found.append((message.type, message.payload["data"]))

    async with s.client.worker(subscriptions=[subscribe("core-events", hear, name="duty")], grace=0.5):
        yield found


async def fail(s, times, status=503, operation="createEntry"):
    s.directory.faults.add("status", operation=operation, times=times, status=status)


async def status_of(s, id):
    return (await s.ask("GET", f"/api/v1/keys/{id}")).body["status"]


# covers D-01
async def test_1_1_exponential_backoff_with_retry(stand, postgres_url, tmp_path):
    assert (BridgeSettings(directory="http://x", participant=A).timeout) == 5.0
    async with stand(postgres_url, tmp_path, bridge={"timeout": 1.0}) as s:
        s.directory.faults.add("timeout", operation="createEntry")
        began = time.monotonic()
        creating = asyncio.create_task(s.create())
        await eventually(lambda: now(not s.directory.faults.all()))
        s.directory.faults.add("drop", operation="createEntry")
        made = await creating
        assert made.status == 201, made
        assert made.body["status"] == "ACTIVE"
        assert s.directory.faults.all() == [], "attempts 1 and 2 failed, of which the second was cut off"
        assert s.asked()[-1] == 201, "attempt 3"
        assert time.monotonic() - began >= 1 + 1 + 2, "a timeout, and waits of 1 s and 2 s"


# covers D-02
async def test_1_2_retry_exhausted_moves_to_the_dead_letters(stand, postgres_url, tmp_path):
    async with stand(postgres_url, tmp_path) as s, alerts(s) as heard:
        await fail(s, 3)
        made = await s.create(traceparent=TRACEPARENT)
        assert made.status == 502, made
        assert made.headers["content-type"] == "application/problem+json"
        assert (made.body["error"], made.body["code"]) == ("Bad Gateway", "attempts_exhausted")
        assert made.body["trace_id"] == made.headers["x-trace-id"] == TRACE
        assert s.directory.faults.all() == [], "three attempts"
        [letter] = await eventually(lambda: letters(s))
        assert letter.error == "AttemptsExhausted"
        assert "BridgeUnavailable after 3 attempts: ServiceUnavailable" in letter.message
        assert letter.trace == TRACE
        [(kind, told)] = await eventually(lambda: now(heard))
        assert kind == "entry.dead_letter"
        assert (told["trace_id"], told["severity"]) == (TRACE, "CRITICAL")
        assert await status_of(s, told["entry_id"]) == "PENDING"
        assert s.asked("deleteEntry") == [], "nothing is undone"


async def letters(s):
    return (await s.client.dead_letters.list()).letters


async def now(found):
    return found


async def test_2_1_a_closed_breaker_lets_requests_through(stand, postgres_url, tmp_path):
    async with stand(postgres_url, tmp_path) as s:
        assert (await s.create()).status == 201
        view = await s.client.breakers.get("bacen")
        assert (view.state, view.failures) == ("closed", 0)


# covers D-03
async def test_2_2_five_failures_open_the_breaker_and_the_next_request_fails_at_once(stand, postgres_url, tmp_path):
    assert BridgeSettings(directory="http://x", participant=A).open_for == 60.0
    async with stand(postgres_url, tmp_path, attempts=1) as s:
        await fail(s, 5)
        for number in NUMBERS[:5]:
            made = await s.create(key(number))
            assert (made.status, made.body["error"]) == (502, "Bad Gateway")
        await eventually(lambda: is_open(s))
        calls = len(s.asked())
        refused = await s.create(key(NUMBERS[5]))
        assert refused.status == 503, refused
        assert (refused.body["error"], refused.body["code"]) == ("Circuit Open", "circuit_open")
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert refused.body["trace_id"] == refused.headers["x-trace-id"]
        assert len(s.asked()) == calls, "no attempt to the directory"
        listed = await s.ask("GET", "/api/v1/keys")
        assert len(listed.body["keys"]) == 5, "nothing was written"


async def is_open(s):
    """In the store, and as core knows it."""
    try:
        await s.core.check_breaker()
    except Refused:
        return await s.breaker() == "open"
    return False


async def test_2_3_a_half_open_breaker_is_closed_by_the_first_success(stand, postgres_url, tmp_path):
    async with stand(postgres_url, tmp_path, attempts=1, bridge={"open_for": 1.0, "failures": 2}) as s:
        await fail(s, 2)
        assert [(await s.create(key(number))).status for number in NUMBERS[:2]] == [502, 502]
        await eventually(lambda: is_open(s))
        said = []

        async def answered():
            said.append((await s.create(key(NUMBERS[2]))).status)
            return said[-1] != 503

        await eventually(answered)
        assert (set(said[:-1]) <= {503}, said[-1]) == (True, 201)
        view = await s.client.breakers.get("bacen")
        assert (view.state, view.failures) == ("closed", 0)


async def has_letters(s, count):
    answer = await s.ask("GET", "/admin/v1/metrics/queues")
    return answer.body["dlq"] == {"pending_messages": count}


# covers D-04
async def test_3_1_dead_letters_are_processed_again(stand, postgres_url, tmp_path):
    async with stand(postgres_url, tmp_path, attempts=1, bridge={"failures": 50}) as s:
        await fail(s, 3)
        said = await asyncio.gather(*(s.create(key(number)) for number in NUMBERS[:3]))
        assert [one.status for one in said] == [502] * 3
        await eventually(partial(has_letters, s, 3))  # each when its run has closed, just behind the answer
        await fail(s, 1)
        asked = {"max_messages": 10, "filter": {"name": "create_entry"}}
        done = await s.ask("POST", "/admin/v1/maintenance/reprocess-dlq", asked)
        assert done.status == 200, done
        assert done.body == {"successful_count": 2, "failed_count": 1, "pending_count": 0}
        assert await has_letters(s, 1)
        found = (await s.ask("GET", "/api/v1/keys")).body["keys"]
        assert sorted(one["status"] for one in found) == ["ACTIVE", "ACTIVE", "PENDING"]
        assert s.asked() == [503] * 4 + [201] * 2


class Broken(KeyTables):
    """Writes of some statement fail."""

    part = ""

    @asynccontextmanager
    async def change(self):
        async with super().change() as tables:
            yield _BrokenTables(tables, self.part)


class _BrokenTables(ChangedTables):
    def __init__(self, tables, part):
        super().__init__(tables._transaction)
        self.part = part

    async def _run(self, statement, *values):
        if self.part in statement:
            raise DatabaseTimeout("connection lost")
        return await super()._run(statement, *values)


def broken(part):
    def wrap(tables):
        found = Broken(tables._database)
        found.part = part
        return found

    return wrap


# covers D-05
async def test_4_1_a_claim_that_cannot_be_stored_is_cancelled(stand, postgres_url, tmp_path):
    async with stand(postgres_url, tmp_path, wrap=broken("donor = ?")) as s:
        s.b.create(at=account(s.b.ispb))
        made = await s.claim(claim())
        assert made.status == 500, made
        assert made.body["error"] == "Failed to create claim. Compensating transaction executed."
        assert (made.body["code"], len(made.body["trace_id"])) == ("compensated", 32)
        [there] = s.b.ask("listClaims", Participant=s.b.ispb).message.claims
        assert (there.status, there.cancelled_by) == ("CANCELLED", "CLAIMER")
        [here] = (await s.ask("GET", "/api/v1/claims")).body["claims"]
        assert here["status"] == "FAILED"
        assert not await letters(s), "it is an answer"


# covers D-06
async def test_4_2_a_saga_whose_third_step_fails_is_undone_in_reverse(stand, postgres_url, tmp_path):
    async def audit(event):
        assert (event.type, event.key_type) == ("entry.created", "PHONE")
        raise AuditUnavailable("service unavailable")

    async with stand(postgres_url, tmp_path, audit=audit) as s:
        made = await s.create()
        assert made.status == 500, made
        assert made.body["error"] == "Failed to create entry. Compensating transaction executed."
        assert (s.asked("createEntry"), s.asked("deleteEntry")) == ([201], [200])
        assert s.directory.storage.counts()["entries"] == 0
        [here] = (await s.ask("GET", "/api/v1/keys")).body["keys"]
        assert (here["status"], here["problem"]) == ("FAILED", made.body["error"])
        assert not await letters(s)


async def test_4_2_what_could_not_be_undone_yet_is_not_said_to_be(stand, postgres_url, tmp_path):
    async def audit(event):
        raise AuditUnavailable("service unavailable")

    patient = {"failures": 50}
    async with stand(postgres_url, tmp_path, settings=settings(wait=0.5), bridge=patient, audit=audit) as s:
        await fail(s, None, operation="deleteEntry")
        made = await s.create()
        assert (made.status, made.body["status"]) == (202, "PENDING")
        await eventually(lambda: now(s.asked("deleteEntry")))
        assert s.directory.storage.counts()["entries"] == 1
        assert await status_of(s, made.body["entry_id"]) == "PENDING", "the directory still has it"
        s.directory.faults.clear()

        async def undone():
            return await status_of(s, made.body["entry_id"]) == "FAILED"

        await eventually(undone)
        assert s.directory.storage.counts()["entries"] == 0


@pytest.mark.parametrize(
    ("problem", "said"),
    [(NOT_COMPENSATED, "neither kept here nor undone"), ("no call", "the directory did not answer")],
)
def test_the_caller_hears_whether_the_directory_has_done_what_stays_pending(problem, said):
    outcome = Outcome(request="create-1", how=How.EXHAUSTED, status="PENDING", problem=problem)
    refusal = refusal_of("entry", outcome).problem
    assert (refusal.status, refusal.code) == (502, "attempts_exhausted")
    assert said in refusal.detail
    assert refusal.detail.endswith("the entry stays PENDING, and a person was told")


async def test_an_update_that_cannot_be_kept_here_is_undone_there(stand, postgres_url, tmp_path):
    wrapped = []

    def wrap(tables):
        wrapped.append(broken("no statement")(tables))
        return wrapped[0]

    async with stand(postgres_url, tmp_path, wrap=wrap) as s:
        id = (await s.create()).body["entry_id"]
        wrapped[0].part = "cid = ?"
        said = await s.ask("PATCH", f"/api/v1/keys/{id}", {"account": json_account(number="9")})
        assert said.status == 500, said
        assert said.body["error"] == "Failed to update entry. Compensating transaction executed."
        assert s.asked("updateEntry") == [200, 200]
        assert s.b.look_up(PHONE).message.entry.account == account(A)


# covers D-07
async def test_5_1_a_duplicate_gets_the_same_answer(stand, postgres_url, tmp_path):
    async with stand(postgres_url, tmp_path) as s:
        first = await s.create(key(idempotency_key="key-123"))
        assert first.status == 201, first
        second = await s.create(key(idempotency_key="key-123"))
        third = await s.create(Idempotency_Key="key-123")
        assert [(one.status, one.body) for one in (second, third)] == [(201, first.body)] * 2
        assert second.headers["idempotency-replayed"] == third.headers["idempotency-replayed"] == "true"
        assert "idempotency-replayed" not in first.headers
        assert s.asked() == [201]
        assert len((await s.ask("GET", "/api/v1/keys")).body["keys"]) == 1


async def test_5_1_duplicates_at_once_make_one_entry(stand, postgres_url, tmp_path):
    async with stand(postgres_url, tmp_path) as s:
        said = await asyncio.gather(*(s.create(Idempotency_Key="key-123") for _ in range(10)))
        assert {one.status for one in said} == {201}
        assert len({one.body["entry_id"] for one in said}) == 1
        assert s.asked() == [201]


# covers D-08
async def test_5_2_the_same_key_with_another_request_is_a_conflict(stand, postgres_url, tmp_path):
    async with stand(postgres_url, tmp_path) as s:
        assert (await s.create(key(NUMBERS[0], idempotency_key="key-456"))).status == 201
        other = await s.create(key(NUMBERS[1], idempotency_key="key-456"))
        assert other.status == 409
        assert other.body["error"] == "Idempotency key conflict"
        assert (other.body["code"], len(other.body["trace_id"])) == ("idempotency_key_reused", 32)
        assert s.asked() == [201]


# covers D-09
async def test_6_1_a_slow_directory_gets_the_client_202_and_the_work_goes_on(stand, postgres_url, tmp_path):
    slow = {"timeout": 60.0, "call_timeout": 60.0}
    wait = settings(wait=0.5)
    async with stand(postgres_url, tmp_path, settings=wait, bridge=slow, call_timeout=60.0) as s:
        s.directory.faults.add("latency", operation="createEntry", seconds=2.0)
        made = await s.create()
        assert made.status == 202, made
        id = made.body["entry_id"]
        assert made.body == {"entry_id": id, "status": "PENDING"}
        assert made.headers["location"] == f"/api/v1/keys/{id}"
        assert made.headers["retry-after"] == "1"
        assert await status_of(s, id) == "PENDING"

        async def active():
            return await status_of(s, id) == "ACTIVE"

        await eventually(active)
        assert s.asked() == [201], "one attempt"


# covers D-10
async def test_6_2_reads_come_from_the_replica_while_the_primary_is_away(
    stand, postgres_url, tmp_path, caplog, monkeypatch
):
    with PostgresServer(settings={"synchronous_commit": "on"}) as primary:  # what was acknowledged stays
        url = primary.create_database()
        standby = f"{postgres_url}{'&' if '?' in postgres_url else '?'}default_transaction_read_only=on"
        async with stand(url, tmp_path, replica=standby, settings=settings(limits=LIMITS)) as s:
            made = await s.create()
            assert made.status == 201, made
            replica = await open_database(postgres_url)
            row = await s.tables.entry(made.body["entry_id"])
            assert row is not None
            await KeyTables(replica).insert_entry(row)  # as replication does
            await replica.close()
            assert "x-data-source" not in (await s.ask("GET", f"/api/v1/keys/{PHONE}")).headers
            primary.stop("immediate")
            monkeypatch.setattr(service, "READ_PATIENCE", 0.2)
            monkeypatch.setattr(service, "WRITE_PATIENCE", 0.5)
            cached = await s.ask("GET", f"/api/v1/keys/{PHONE}")
            assert (cached.status, "x-data-source" in cached.headers) == (200, False), "it was read just before"
            await s.caches.entries.delete(CachedEntry.of(row))
            read = await s.ask("GET", f"/api/v1/keys/{PHONE}")
            assert read.status == 200, read
            assert read.headers["x-data-source"] == "replica"
            assert (read.body["key_value"], read.body["status"]) == (PHONE, "ACTIVE")
            assert "degraded: the primary is away" in caplog.text
            written = await s.create(key(NUMBERS[0]))
            assert (written.status, written.body["code"]) in [(503, "database_away"), (503, "store_unavailable")]
            primary.start()

            async def back():
                found = await s.ask("GET", f"/api/v1/keys/{PHONE}")
                return found.status == 200 and "x-data-source" not in found.headers

            await eventually(back)


@pytest.mark.parametrize("away", [1, 4])
async def test_accepted_work_waits_at_the_gate_and_is_done_when_the_directory_is_back(
    stand, postgres_url, tmp_path, away
):
    quick = settings(wait=0.3)
    async with stand(postgres_url, tmp_path, settings=quick, bridge={"open_for": 1.0, "failures": 1}) as s:
        await fail(s, away)
        bodies = [key(number, account=json_account(number=number[-4:])) for number in NUMBERS]
        said = await asyncio.gather(*(s.create(body) for body in bodies))
        assert {one.status for one in said} <= {201, 202, 503}
        accepted = [one.body["entry_id"] for one in said if one.status != 503]
        assert accepted

        async def all_active():
            return {await status_of(s, id) for id in accepted} == {"ACTIVE"}

        await eventually(all_active)
        assert s.asked().count(201) == len(accepted)
        assert not await letters(s)
