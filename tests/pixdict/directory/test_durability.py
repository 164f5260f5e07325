"""A directory that is killed and started again: what it answered is there."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpcore2
import pytest

from pixdict.dict import messages, xml
from pixdict.dict.cids import cid_of, vsync_of
from pixdict.directory import Directory
from pixdict.directory.settings import DirectorySettings
from pixdict.directory.storage import Storage
from tests.pixdict.directory.kit import CPF, PHONE, A, B, Bank, account, create, service


@contextmanager
def running(path: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command, and where it listens."""
    command = [sys.executable, "-m", "pixdict", "directory", "--port", "0", "--path", str(path), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://[\d.:]+", process.stdout.readline())
            assert found
            yield found[0], process
        finally:
            process.kill()


async def write_until_killed(url: str, process: subprocess.Popen[str]) -> tuple[list[messages.CreateEntryRequest], ...]:
    """Writes by four clients, and a kill in the middle. Returns what was asked and what was answered."""
    asked: list[messages.CreateEntryRequest] = []
    answered: list[messages.CreateEntryRequest] = []

    async def client(pool: httpcore2.AsyncConnectionPool, name: int) -> None:
        for number in range(10_000):
            message = create(f"c{name}n{number}@b.com", "EMAIL", at=account(number=f"{name}{number}"))
            asked.append(message)
            try:
                answer = await pool.request("POST", f"{url}/api/v2/entries/", content=xml.to_bytes(message))
            except (httpcore2.NetworkError, httpcore2.ProtocolError):
                return
            if answer.status == 201:
                answered.append(message)
            if len(answered) == 60:
                os.kill(process.pid, signal.SIGKILL)

    async with httpcore2.AsyncConnectionPool() as pool:
        await asyncio.gather(*(client(pool, name) for name in range(4)))
    return asked, answered


@pytest.mark.chaos
async def test_what_was_answered_is_there_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "directory.db"
    with running(path) as (url, process):
        asked, answered = await write_until_killed(url, process)
        process.wait(10)
    assert len(asked) > len(answered) >= 60
    async with Directory.serve(path=path) as directory:
        storage = directory.storage
        live = [message for message in asked if storage.has_key(message.entry.key or "")]
        assert [message for message in answered if message not in live] == []
        cids = [cid_of(message.entry, message.request_id) for message in live]
        assert storage.vsync(A, "EMAIL") == vsync_of(cids), "nothing is half written"
        async with httpcore2.AsyncConnectionPool() as pool:
            for message in asked:
                answer = await pool.request("POST", f"{directory.url}/api/v2/entries/", content=xml.to_bytes(message))
                assert answer.status == 201, "a repeat of what was lost"
        assert storage.counts()["entries"] == len(asked)


def test_everything_but_faults_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "directory.db"
    first = service(path=path)
    message = create()
    Bank(first, A).ask("createEntry", message)
    claim_id = Bank(first, B).claim().message.claim.id
    Bank(first, B).look_up(PHONE, payment="E1")
    first.advance(3600)
    first.set_balance("KEYS_CHECK", A, -3)
    first.set_participant("99999999", first.participants[A])
    first.storage.close()

    again = service(path=path)
    a, b = Bank(again, A), Bank(again, B)
    assert again.now() == first.now()
    assert a.ask("createEntry", message).status == 201
    assert a.ask("getClaim", value=str(claim_id)).message.claim.status == "OPEN"
    assert b.claim().problem == "ClaimAlreadyExistsForKey"
    assert again.payment_sent("E1", CPF) == 1
    assert a.tokens("KEYS_CHECK") == -3
    assert "99999999" in again.participants
    assert a.ask("acknowledgeClaim", value=str(uuid4()), message=b"").problem == "BadRequest"


def test_a_directory_that_signs_keeps_its_certificate(tmp_path: Path) -> None:
    path, settings = tmp_path / "directory.db", DirectorySettings(signature="present")
    first, again = Directory(settings, path=path), Directory(settings, path=path)
    assert first.certificate == again.certificate
    first.close()
    again.close()


def test_an_error_in_a_request_undoes_it(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "x.db")

    def fail(value: str) -> None:
        storage.put_fact("a", value)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), storage.transaction():
        fail("1")
    assert storage.fact("a", "") == ""
    with storage.transaction():
        storage.put_fact("a", "1")
        with pytest.raises(ZeroDivisionError), storage.undone_by_errors():
            fail("2")
    assert storage.fact("a", "") == "1"
    storage.close()
