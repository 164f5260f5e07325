"""Attempts of activities: written before their answer, and kept."""

from __future__ import annotations

from msgspec.structs import replace

from batuta.journal.records import FIRST_KEPT, LAST_KEPT, LOSSES, Attempt, Move, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import beat, claim_one, live_worker, outlive_lease, start_owned


class AttemptsConformance:
    """An attempt is written with its run's fence and found by the next owner."""

    async def test_attempts_come_back_in_order(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        attempts = [
            Attempt(seq=2, number=1, started_at=10, ended_at=20, next_at=30, error='{"type":"E","message":"no"}'),
            Attempt(seq=1, number=2, started_at=12),
            Attempt(seq=1, number=1, started_at=11, details='{"page":3}'),
        ]
        await pen.write(store, worker, 0, attempts=attempts)
        assert await store.attempts(pen.run_id) == [attempts[2], attempts[1], attempts[0]]
        assert await store.attempts(pen.run_id, 1) == [attempts[2], attempts[1]]
        assert await store.attempts(pen.run_id, 3) == []
        assert (await store.get_run(pen.run_id)).head == 0

    async def test_an_attempt_is_written_over(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, attempts=[Attempt(seq=1, number=1, started_at=10)])
        ended = Attempt(seq=1, number=1, started_at=10, ended_at=20, next_at=50, error="{}")
        await pen.write(store, worker, 1, attempts=[ended])
        assert await store.attempts(pen.run_id) == [ended]

    async def test_the_next_owner_finds_them(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        attempt = Attempt(seq=1, number=3, started_at=10, ended_at=11, next_at=12, error="{}")
        await pen.write(store, worker, 0, attempts=[attempt])
        await outlive_lease(store)
        other = await live_worker(store)
        await beat(store, other, reap=True)
        found = (await claim_one(store, other)).attempts
        assert [one for one in found if one.seq != LOSSES] == [attempt]
        assert await pen.write(store, worker, 0, attempts=[Attempt(seq=1, number=4, started_at=1)]) is Verdict.REFUSED
        assert await store.attempts(pen.run_id) == found

    async def test_they_stay_when_the_answer_is_written_and_the_run_closed(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        failed = Attempt(seq=1, number=1, started_at=10, ended_at=20, next_at=30, error='{"type":"E","message":"no"}')
        await pen.write(store, worker, 0, attempts=[failed])
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        assert await store.attempts(pen.run_id) == [failed]

    async def test_of_many_attempts_of_a_call_the_first_and_the_last_are_kept(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        other = Attempt(seq=2, number=50, started_at=1)
        await pen.write(store, worker, 0, attempts=[other])
        many = [Attempt(seq=1, number=n, started_at=n, ended_at=n + 1, error="{}") for n in range(1, 251)]
        for first in range(0, 250, 7):
            await pen.write(store, worker, 0, attempts=many[first : first + 7])
        await pen.write(store, worker, 0, attempts=[Attempt(seq=1, number=251, started_at=251)])
        numbers = [one.number for one in await store.attempts(pen.run_id, 1)]
        assert numbers == [*range(1, FIRST_KEPT + 1), *range(252 - LAST_KEPT, 252)]
        assert [one.number for one in (await store.load(pen.run_id)).attempts] == [*numbers, 50]

    async def test_a_run_without_attempts_has_none(self, store: Store) -> None:
        worker = await live_worker(store)
        assert await store.attempts((await start_owned(store, worker)).run_id) == []

    async def test_an_attempt_whose_answer_comes_from_outside_is_known_as_such(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        begun = Attempt(seq=1, number=1, started_at=10)
        ended = Attempt(seq=1, number=1, started_at=10, ended_at=20, outside=True)
        for attempt in (begun, ended):
            await pen.write(store, worker, 0, attempts=[attempt])
            assert await store.attempts(pen.run_id) == [attempt] == (await store.load(pen.run_id)).attempts

    async def test_the_tokens_that_an_attempt_handed_out_stay_known(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        asked = Attempt(seq=1, number=1, started_at=10, tokens="one")
        for tokens, kept in (("one", "one"), (None, "one"), ("one two", "one two"), (None, "one two")):
            await pen.write(store, worker, 0, attempts=[replace(asked, tokens=tokens, details='"d"')])
            [found] = await store.attempts(pen.run_id, 1)
            assert (found.tokens, found.details) == (kept, '"d"')
            assert (await store.load(pen.run_id)).attempts == [found]
        await pen.write(store, worker, 0, attempts=[Attempt(seq=1, number=2, started_at=11)])
        assert [one.tokens for one in await store.attempts(pen.run_id)] == ["one two", None]
