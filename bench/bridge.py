"""bridge: calls through the Bridge (gRPC, XML over HTTP), without signatures and with all of them made and verified.
The Bridge, its callers and the simulator are a process each."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from batuta import connect
from bench.child import Figures, Task
from pixdict.bridge import BridgeClient, BridgeSettings, serve
from pixdict.dict.entries import Account, Entry, Person
from pixdict.dict.policies import Limit
from pixdict.dict.signatures import Signer, self_signed
from pixdict.directory import Directory, DirectorySettings, Participant

ISPB: Final = "12345678"
CALLERS: Final = 32
PLENTY: Final = dict.fromkeys(("", "A", "PF", "PJ"), Limit(10_000_000, 10_000_000))
LIMITED: Final = ("ENTRIES_READ_PARTICIPANT_ANTISCAN", "ENTRIES_READ_USER_ANTISCAN", "ENTRIES_WRITE")
PAYERS: Final = 20_000
"""The Bridge knows the size of a payer's bucket by itself: many payers have tokens enough."""


async def bridge(task: Task) -> Figures:
    """Creations and look-ups: calls a second, milliseconds of the Bridge's processor time for each, and calls for each
    second of that time, which says more than the first on a machine that is busy."""
    figures: dict[str, float] = {}
    for mode in ("off", "verify"):
        async with _bridge(task.url, signed=mode == "verify") as address:
            for name in ("creations", "lookups"):
                async with _child("callers", address, name, str(task.seconds / 4)) as callers:
                    assert callers.stdout is not None
                    await callers.stdout.readline()  # warm
                    begun = time.process_time()
                    done, seconds = (await callers.stdout.readline()).split()
                    spent = time.process_time() - begun
                figures |= {
                    f"{name}_{mode}_per_s": int(done) / float(seconds),
                    f"{name}_{mode}_cpu_ms": 1000 * spent / int(done),
                    f"{name}_{mode}_per_cpu_s": int(done) / spent,
                }
    return figures


@asynccontextmanager
async def _child(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-m", "bench.bridge", *arguments)
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()


@asynccontextmanager
async def _bridge(store: str, *, signed: bool) -> AsyncIterator[str]:
    with TemporaryDirectory() as given:
        folder, signer = Path(given), self_signed(ISPB, datetime.now(UTC)) if signed else None
        for name, pem in zip(("key.pem", "ours.pem"), signer.pem() if signer else (), strict=False):
            (folder / name).write_bytes(pem)
        async with _child("directory", given) as child:
            assert child.stdout is not None
            url = (await child.stdout.readline()).decode().strip()
            trusted = x509.load_pem_x509_certificate((folder / "theirs.pem").read_bytes()) if signed else None
            settings = BridgeSettings(directory=url, participant=ISPB, signer=signer, trusted=trusted)
            async with connect(store, migrate=True) as batuta, serve(settings, batuta, grace=0.0) as made:
                yield made.address


async def _directory(folder: Path) -> None:
    """A process: until it is ended."""
    signed = (folder / "key.pem").exists()
    signer = Signer.of_pem((folder / "key.pem").read_bytes(), (folder / "ours.pem").read_bytes()) if signed else None
    settings = DirectorySettings(
        participants={ISPB: Participant(certificate=signer.certificate if signer else None)},
        signature="verify" if signed else "off",
        refuse_own_lookups=False,
        policies=dict.fromkeys(LIMITED, PLENTY),
    )
    async with Directory.serve(settings) as directory:
        if directory.certificate is not None:
            (folder / "theirs.pem").write_bytes(directory.certificate.public_bytes(Encoding.PEM))
        print(directory.url, flush=True)
        await asyncio.Event().wait()


async def _callers(address: str, kind: str, seconds: float) -> None:
    """A process: says when it begins, then how many calls it made, and in how many seconds."""
    async with BridgeClient(address) as client:
        numbers, done = count(1), 0

        async def call() -> None:
            number = next(numbers)
            if kind == "creations":
                await client.create_entry(_entry(number), reason="USER_REQUESTED", request_id=uuid4())
            else:
                payer = f"11222333{number % PAYERS:06}"
                await client.get_entry(_key(1), payer_id=payer, end_to_end_id=f"E{number}")

        async def caller() -> None:
            nonlocal done
            while time.perf_counter() - begun < seconds:
                await call()
                done += 1

        for _ in range(CALLERS):
            await call()
        print("warm", flush=True)
        begun = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        print(done, time.perf_counter() - begun, flush=True)


def _key(number: int) -> str:
    return f"+55119{number:08}"


def _entry(number: int) -> Entry:
    opened = datetime(2020, 1, 1, tzinfo=UTC)
    account = Account(participant=ISPB, account_number=str(number), account_type="CACC", opening_date=opened)
    owner = Person(type="NATURAL_PERSON", tax_id_number="11122233300", name="Ada")
    return Entry(key=_key(number), key_type="PHONE", account=account, owner=owner)


if __name__ == "__main__":
    match sys.argv[1:]:
        case "directory", folder:
            asyncio.run(_directory(Path(folder)))
        case "callers", address, kind, seconds:
            asyncio.run(_callers(address, kind, float(seconds)))
