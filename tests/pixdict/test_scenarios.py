"""Scenarios as a command: a ledger that proves, and one that does not."""

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from batuta.errors import InvalidInput
from pixdict.cli import root
from pixdict.dev.stand import Options, stand
from pixdict.dev.wire import Wire, place_of, through
from pixdict.scenarios import SCENARIOS, Ledger, Player, Scenario
from pixdict.scenarios.command import tell
from pixdict.scenarios.stage import Missing, new_number
from tests.cache.conftest import valkey

__all__ = ["valkey"]

QUICK = Options(port=0, open_for=1.0, wait=1.0)
KILLED = "worker-killed"


def ledger_of(**fields):
    return Ledger(name="x", title="X", began_at=datetime(2026, 1, 1, tzinfo=UTC), **fields)


def test_a_ledger_proves_only_what_it_has_lines_for():
    assert not ledger_of(is_over=True).passed
    found = ledger_of(is_over=True)
    found.expect("entries", 2, 2)
    assert (found.passed, found.verdict) == (True, "proved")
    found.expect("entries", {"201": 3}, {"201": 2, "503": 1})
    assert (found.passed, found.verdict) == (False, "NOT as expected")
    assert (found.lines[1].expected, found.lines[1].seen) == ("3 x 201", "2 x 201, 1 x 503")
    assert found.sentence == "X: NOT as expected, 1 of 2 lines as expected"


@pytest.mark.parametrize("fields", [{"missing": "no Redis"}, {"failure": "too late"}, {"is_over": False}])
def test_a_ledger_of_what_was_not_played_to_its_end_proves_nothing(fields):
    found = ledger_of(**{"is_over": True, **fields})
    found.expect("entries", 1, 1)
    assert not found.passed


async def play(running, *names):
    player = Player(running, SCENARIOS)
    for name in names:
        ledger = await player.begin(name)
        tell(ledger)
        yield ledger


async def test_every_scenario_but_the_killed_process_is_proved_on_sqlite(tmp_path, valkey):
    async with stand(tmp_path, Options(**{**options(QUICK), "redis": valkey.url})) as running:
        names = [one.name for one in SCENARIOS if one.name != KILLED]
        async for ledger in play(running, *names):
            assert ledger.passed, ledger


async def test_a_killed_worker_and_an_absent_primary_are_proved_on_postgresql(tmp_path, postgres_url):
    """Its connections are cut, and no failpoint is used. The replica is the same database, past the wire."""
    told = Options(**{**options(QUICK), "store": postgres_url, "replica": postgres_url})
    async with stand(tmp_path, told) as running:
        async for ledger in play(running, KILLED, "primary-away"):
            assert ledger.passed, ledger
        assert "connections of all parts" in " ".join(text for _, text in ledger.steps)


def options(given):
    return {name: getattr(given, name) for name in given.__struct_fields__}


def failing(play):
    return [Scenario(name="x", title="X", happens="-", should="-", play=play)]


@asynccontextmanager
async def player_of(tmp_path, play, **more):
    async with stand(tmp_path, Options(**{**options(QUICK), **more})) as running:
        yield Player(running, failing(play))


async def test_a_scenario_that_breaks_or_lacks_a_part_says_so_and_leaves_everything_in_order(tmp_path):
    errors = [RuntimeError("broken"), Missing("pip install x")]

    async def breaks(stage):
        stage.stand.directory.faults.add("drop", times=None)
        await stage.stand.primary.go()
        await stage.stand.keys.stop()
        raise errors.pop()

    async with player_of(tmp_path, breaks) as player:
        first, second = await player.begin("x"), await player.begin("x")
        assert (first.verdict, first.missing) == ("cannot be played here", "pip install x")
        assert (second.verdict, second.failure) == ("did not come to its end", "RuntimeError: broken")
        assert player._stand.directory.faults.all() == []

        async def works(stage):
            stage.expect("created", 201, (await stage.create(new_number())).status)

        ledger = await Player(player._stand, failing(works)).begin("x")
        assert ledger.passed, ledger


async def test_one_scenario_is_played_at_a_time_and_an_unknown_one_is_refused(tmp_path):
    going = asyncio.Event()

    async def waits(stage):
        await going.wait()
        stage.expect("went on", 1, 1)

    async with player_of(tmp_path, waits) as player:
        playing = player.begin("x")
        with pytest.raises(InvalidInput, match="another scenario"):
            player.begin("x")
        with pytest.raises(InvalidInput, match="choose one of x"):
            player.begin("y")
        going.set()
        assert (await playing).passed
        going.clear()
        ended = player.begin("x")
        await player.close()
        assert ended.cancelled()


async def test_a_wire_that_is_cut_ends_connections_and_refuses_new_ones_until_it_is_mended():
    async def echo(reader, writer):
        with suppress(ConnectionError):
            writer.write(await reader.readline())
            await reader.read()
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        async with Wire.to("127.0.0.1", server.sockets[0].getsockname()[1]) as wire:
            reader, writer = await asyncio.open_connection("127.0.0.1", wire.port)
            writer.write(b"hello\n")
            assert await reader.readline() == b"hello\n"
            await wire.cut()
            with suppress(ConnectionError):
                assert await reader.read() == b""
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", wire.port)
            writer.close()
            port = wire.port
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with pytest.raises(OSError):
                    other.bind(("127.0.0.1", port))  # nobody else gets it
            await wire.mend()
            assert wire.port == port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"again\n")
            assert await reader.readline() == b"again\n"
            writer.close()


def test_addresses_go_over_a_wire_with_all_else_as_it_was():
    wire = Wire("there", 1)
    wire.port = 7
    assert place_of("postgresql://u:p@there:15/db", 5432) == ("there", 15)
    assert place_of("redis://there", 6379) == ("there", 6379)
    assert place_of("postgresql://u:p@/db?host=/tmp", 5432) is None
    assert place_of("redis+sentinel://a:1,b:2/m", 6379) is None
    assert through("postgresql://u:p%40@there:15/db?x=1", wire) == "postgresql://u:p%40@127.0.0.1:7/db?x=1"


def run(*arguments):
    return CliRunner().invoke(root, ["scenarios", *arguments])


def test_the_command_lists_them_and_refuses_what_there_is_not():
    listed = run()
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines() if line[0] != " "] == [one.name for one in SCENARIOS]
    assert len(SCENARIOS) == 10
    unknown = run("nothing")
    assert unknown.exit_code == 2
    assert "choose one of outage" in unknown.output


def test_the_command_prints_the_ledger_and_ends_with_0_when_it_is_proved():
    played = run("same-key-other-body", "--open-for", "1")
    assert played.exit_code == 0, played.output
    assert "ok   the second request gets: 409 Idempotency key conflict" in played.output
    assert "The same key with another body: proved, 9 of 9 lines as expected" in played.output


def test_the_command_ends_with_1_when_a_part_is_missing(postgres_url):
    played = run("primary-away", "--store", postgres_url)
    assert played.exit_code == 1
    assert "give --replica" in played.output
