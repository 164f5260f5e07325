"""Who has no token cannot answer: not with ids, not with another token, not with what lies in the database."""

import asyncio
import threading
import zlib
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from msgspec.structs import replace

from batuta import (
    CompleteLater,
    InvalidToken,
    LostAttempt,
    Retry,
    RunState,
    activity,
    activity_info,
    heartbeat,
    job,
    workflow,
)
from batuta.authoring.activity.tokens import AttemptRef, is_kept, parse_token, with_token
from batuta.codecs import Encryption, Keys
from batuta.engine.backend import external_completion
from batuta.ids import RunId, new_run_id, new_secret
from batuta.journal.records import Attempt
from batuta.stores.coded import coded
from batuta.stores.coded.store import CodedStore
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import Environment
from tests.engine.arena import PATIENCE, Arena, until, until_state
from tests.engine.kit import jobs, world

tokens: list[str] = []
gates: list[asyncio.Event] = []
"""The one of the test's own loop."""


@pytest.fixture(autouse=True)
def _afresh() -> None:
    tokens.clear()
    gates[:] = [asyncio.Event()]


@activity(retry=Retry(attempts=3, first=1, jitter=0))
async def ask(who: str) -> str:
    tokens.append(activity_info().token)
    raise CompleteLater


@activity
async def works() -> str:
    """Never asks for its token."""
    await asyncio.wait_for(gates[0].wait(), 3600)
    return "worked"


@workflow
async def asks_two() -> list[str]:
    return list(await asyncio.gather(ask("customer"), ask("manager"), works()))


@workflow
async def asks() -> str:
    return await ask("customer")


@pytest.mark.parametrize("size", range(1, 4))
def test_a_token_whose_last_letter_was_changed_is_none(size: int) -> None:
    """Also when that letter has bits that mean nothing."""
    token = AttemptRef("n" * size, new_run_id(), 1, 1, 1, new_secret()).token()
    assert parse_token(token).token() == token
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for changed in (
        *(token[:-1] + one for one in letters if one != token[-1]),
        token + "=",
        token[:9] + " " + token[9:],
    ):
        with pytest.raises(InvalidToken):
            parse_token(changed)


@pytest.mark.parametrize("data", [b"\x91" * 200_000 + b"\xc0", b"\xdd\xff\xff\xff\xff", b""])
def test_a_token_that_is_nested_deeply_or_claims_to_be_long_is_none(data: bytes) -> None:
    text = "t." + urlsafe_b64encode(zlib.crc32(data).to_bytes(4, "big") + data).decode().rstrip("=")
    with pytest.raises(InvalidToken):
        parse_token(text)


def forged(token: str, **changes: Any) -> str:
    """What the holder of a token can make of it."""
    return replace(parse_token(token), **changes).token()


async def refuses(client: Any, token: str) -> None:
    """However it is used. The error does not tell the token to whoever reads the log."""
    for send in (client.complete, client.fail, client.heartbeat):
        with pytest.raises(InvalidToken) as refused:
            await send(token, "stolen")
        assert token not in str(refused.value)
        assert token[2:20] not in str(refused.value)


async def attempts_of(env: Environment, run_id: RunId) -> list[Attempt]:
    return await env.store.attempts(run_id)


# -- forging


async def test_a_token_of_one_activity_cannot_be_made_into_one_of_another() -> None:
    async with world(asks_two, ask, works) as env:
        handle = await env.start(asks_two)
        other = await env.start(asks_two)
        await env.settle()
        mine = tokens[0]
        await refuses(env.client, forged(mine, seq=2))
        await refuses(env.client, forged(mine, seq=3))
        await refuses(env.client, forged(mine, attempt=2))
        await refuses(env.client, forged(mine, run_id=other.run_id))
        await refuses(env.client, forged(mine, secret=new_secret()))
        await refuses(env.client, forged(mine, secret=parse_token(mine).secret[:-1]))
        for token in tokens:
            await env.client.complete(token, "answered")
        gates[0].set()
        assert await handle.result() == ["answered", "answered", "worked"]


async def test_the_ids_of_a_run_are_no_token_for_an_activity_that_never_asked() -> None:
    async with world(asks_two, ask, works) as env:
        handle = await env.start(asks_two)
        await env.settle()
        for secret in (b"", new_secret()):
            await refuses(env.client, AttemptRef("default", handle.run_id, 3, 1, 0, secret).token())
        for token in tokens:
            await env.client.complete(token, "answered")
        gates[0].set()
        assert await handle.result() == ["answered", "answered", "worked"]


async def test_an_attempt_that_waits_but_never_asked_takes_no_answer() -> None:
    @activity(timeout=60)
    async def forgets() -> str:
        raise CompleteLater

    @workflow
    async def waits() -> str:
        return await forgets()

    async with world(waits, forgets) as env:
        handle = await env.start(waits)
        await env.advance(1)
        before = env.now
        await refuses(env.client, AttemptRef("default", handle.run_id, 1, 1, 0, new_secret()).token())
        assert env.now == before
        await handle.terminate()


async def test_what_lies_in_the_database_makes_no_token() -> None:
    async with world(asks, ask) as env:
        handle = await env.start(asks)
        await env.settle()
        [row] = await attempts_of(env, handle.run_id)
        assert row.tokens is not None
        secret = parse_token(tokens[0]).secret
        assert secret.hex() not in row.tokens
        await refuses(env.client, forged(tokens[0], secret=bytes.fromhex(row.tokens)))
        await env.client.complete(tokens[0], "answered")


async def test_an_activity_that_never_asks_writes_nothing_about_tokens() -> None:
    @workflow
    async def quick() -> str:
        return await works()

    async with world(quick, works) as env:
        handle = await env.start(quick)
        await env.settle()
        gates[0].set()
        assert await handle.result() == "worked"
        assert await attempts_of(env, handle.run_id) == []


def test_no_two_attempts_have_the_same_secret() -> None:
    assert len({new_secret() for _ in range(1_000)}) == 1_000


def test_a_reference_is_shown_without_its_secret() -> None:
    ref = AttemptRef("default", new_run_id(), 1, 1, 0, b"sesame sesame..!")
    assert "sesame" not in repr(ref)
    assert ref.secret.hex() not in str(ref)


@pytest.mark.parametrize("kept", [None, "", " ", "é" * 32, "0" * 32, "null"])
def test_rubbish_in_the_database_is_no_token(kept: str | None) -> None:
    assert not is_kept(kept, b"0" * 16)
    assert is_kept(with_token(kept, b"0" * 16), b"0" * 16)


def test_the_last_tokens_of_an_attempt_serve_and_no_row_grows() -> None:
    secrets = [new_secret() for _ in range(100)]
    kept = ""
    for secret in secrets:
        kept = with_token(kept, secret)
    assert [is_kept(kept, secret) for secret in secrets] == [False] * 92 + [True] * 8


# -- whoever asked


async def test_an_answer_that_comes_before_the_token_is_durable_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(asks, ask) as env:
        commit = env.store.commit

        async def slow(*args: Any) -> Any:
            if any(change.attempts for change in args[1]):
                await asyncio.sleep(2)
            return await commit(*args)

        monkeypatch.setattr(env.store, "commit", slow)
        handle = await env.start(asks)
        while not tokens:
            await asyncio.sleep(0)
        assert await attempts_of(env, handle.run_id) == []
        await env.client.complete(tokens[0], "early")
        assert await handle.result() == "early"


async def test_asking_twice_gives_the_same_token() -> None:
    @activity
    async def asks_again() -> str:
        tokens.append(activity_info().token)
        heartbeat("half")
        tokens.append(activity_info().token)
        thread = await asyncio.to_thread(lambda: activity_info().token)
        tokens.append(thread)
        raise CompleteLater

    @workflow
    async def waits() -> str:
        return await asks_again()

    async with world(waits, asks_again) as env:
        handle = await env.start(waits)
        while len(tokens) < 3:
            await env.advance(0.1)
        assert len(set(tokens)) == 1
        await env.client.complete(tokens[0], "answered")
        assert await handle.result() == "answered"


async def test_many_threads_of_one_activity_get_one_token() -> None:
    @activity
    def asks_in_threads() -> str:
        asking = activity_info()
        threads = [threading.Thread(target=lambda: tokens.append(asking.token)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        raise CompleteLater

    @workflow
    async def waits() -> str:
        return await asks_in_threads()

    async with world(waits, asks_in_threads) as env:
        handle = await env.start(waits)
        while len(tokens) < 8:
            await env.advance(0.1)
        assert len(set(tokens)) == 1
        await env.client.complete(tokens[0], "answered")
        assert await handle.result() == "answered"


async def test_after_a_crash_the_tokens_of_both_calls_serve() -> None:
    @activity
    async def mails() -> str:
        tokens.append(activity_info().token)
        await asyncio.sleep(10)
        raise CompleteLater

    @workflow
    async def waits() -> str:
        return await mails()

    for chosen in (0, 1):
        tokens.clear()
        async with world(waits, mails) as env:
            handle = await env.start(waits)
            await env.advance(1)
            await env.crash()
            await env.advance(20)
            assert len(set(tokens)) == 2
            await env.client.complete(tokens[chosen], f"by {chosen}")
            with pytest.raises(LostAttempt):
                await env.client.complete(tokens[1 - chosen], "late")
            assert await handle.result() == f"by {chosen}"


async def test_a_heartbeat_or_a_failure_keeps_the_token_known() -> None:
    async with world(asks, ask) as env:
        handle = await env.start(asks)
        await env.settle()
        await env.client.heartbeat(tokens[0], "page 1")
        await env.settle()
        await env.client.heartbeat(tokens[0], "page 2")
        await env.client.fail(tokens[0], "no paper")
        await env.advance(2)
        with pytest.raises(LostAttempt):
            await env.client.complete(tokens[0], "late")
        await env.client.complete(tokens[1], "answered")
        assert await handle.result() == "answered"


async def test_a_failed_call_that_is_made_again_in_a_new_run_has_another_token() -> None:
    async with world(asks, ask) as env:
        handle = await env.start(asks, id="a")
        for _ in range(3):
            await env.settle()
            await env.client.fail(tokens[-1], "no")
            await env.advance(5)
        await handle.retry()
        await env.settle()
        assert len(tokens) == 4
        for old in tokens[:3]:
            with pytest.raises(LostAttempt):
                await env.client.complete(old, "stolen")
        await env.client.complete(tokens[3], "answered")
        assert await (await env.client.get("a")).result() == "answered"


async def test_a_job_that_asks_while_it_works_can_be_answered_at_once() -> None:
    @job
    async def asks_early() -> str:
        tokens.append(activity_info().token)
        await asyncio.sleep(60)
        return "too late"

    async with jobs(asks_early) as env:
        [handle] = await env.client.enqueue_many([asks_early.call()])
        await env.advance(1)
        await refuses(env.client, forged(tokens[0], secret=new_secret()))
        await env.client.complete(tokens[0], "early")
        assert await handle.result() == "early"


# -- on every store


@activity(queue="gpu", timeout=3600)
async def ask_elsewhere() -> str:
    tokens.append(activity_info().token)
    raise CompleteLater


@workflow
async def asks_everywhere() -> list[str]:
    return list(await asyncio.gather(ask("customer"), ask_elsewhere(), works()))


@job
async def asking_job() -> str:
    tokens.append(activity_info().token)
    raise CompleteLater


async def until_asked(count: int) -> None:
    async def there() -> bool:
        return len(tokens) >= count

    await until(there)


async def test_no_store_takes_a_forged_token(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, asks_everywhere, ask, works)
    await arena.worker(other, ask_elsewhere, queues=["gpu"])
    handle = await client.start(asks_everywhere)
    await until_asked(2)
    at_home = next(token for token in tokens if parse_token(token).run_id == handle.run_id)
    with monkeypatch.context() as hasty:
        hasty.setattr(external_completion, "_WAITS", (0.01, 0.02))
        for token in (*(forged(token, secret=new_secret()) for token in tokens), forged(at_home, seq=3)):
            with pytest.raises(InvalidToken):
                await other.complete(token, "stolen")
    await asyncio.gather(*(other.complete(token, "answered") for token in tokens))
    gates[0].set()
    assert await handle.result(PATIENCE) == ["answered", "answered", "worked"]


async def test_on_every_store_a_token_serves_after_its_worker_died_and_after_a_reset(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    worker = await arena.worker(client, asks, ask)
    handle = await client.start(asks, id="a")
    await until_state(handle, RunState.WAITING)
    await arena.kill(client, worker)
    await handle.reset(0, reason="again")
    await arena.worker(client, asks, ask)
    await other.complete(tokens[0], "answered")
    assert await (await other.get("a")).result(PATIENCE) == "answered"
    assert len(tokens) == 1


async def test_on_every_store_a_job_hands_out_its_token(arena: Arena) -> None:
    client = await arena.client()
    async with client.worker(jobs=[asking_job], heartbeat=0.1):
        handle = await client.enqueue(asking_job)
        await until_asked(1)
        await client.complete(tokens[0], "answered")
        assert await handle.result(PATIENCE) == "answered"


async def test_with_a_codec_a_hash_that_somebody_wrote_in_clear_is_no_token(
    real_time: None,
) -> None:
    database, codec = MemoryDatabase(), Encryption(Keys.new("k1"))
    arena = Arena(lambda: coded(MemoryStore(database), [codec]))
    client = await arena.client()
    store = arena.store(client)
    assert isinstance(store, CodedStore)
    await arena.worker(client, asks, ask)
    handle = await client.start(asks)
    await until_state(handle, RunState.WAITING)
    [row] = await store.inner.attempts(handle.run_id)
    mine = new_secret()
    assert isinstance(store.inner, MemoryStore)
    with store.inner.transaction() as moment:
        moment.row(handle.run_id).attempts[1, 1] = replace(row, tokens=with_token(None, mine))
    with pytest.raises(InvalidToken):
        await client.complete(forged(tokens[0], secret=mine), "stolen")
    await handle.terminate()
    await arena.close()
