"""bridge: calls through the Bridge (gRPC, XML over HTTP) to a simulator in a process of its own, without signatures and
with all of them made and verified. Bridge and callers are one process."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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
PAYERS: Final = 2_000
"""The Bridge knows the size of a payer's bucket by itself: many payers have tokens enough."""


async def bridge(task: Task) -> Figures:
    """Look-ups and creations of entries, without and with signatures."""
    figures: dict[str, float] = {}
    for mode in ("off", "verify"):
        async with _client(task.url, signed=mode == "verify") as client:
            numbers = count()

            async def create(client: BridgeClient = client, numbers: Iterator[int] = numbers) -> None:
                await client.create_entry(_entry(next(numbers)), reason="USER_REQUESTED", request_id=uuid4())

            async def look_up(client: BridgeClient = client, numbers: Iterator[int] = numbers) -> None:
                payer = f"11222333{next(numbers) % PAYERS:06}"
                await client.get_entry(_key(0), payer_id=payer, end_to_end_id="E1")

            for name, act in (("creations", create), ("lookups", look_up)):
                rate, cpu = await _rate(act, task.seconds / 4)
                figures |= {f"{name}_{mode}_per_s": rate, f"{name}_{mode}_cpu_ms": cpu}
    return figures


def _key(number: int) -> str:
    return f"+55119{number:08}"


def _entry(number: int) -> Entry:
    opened = datetime(2020, 1, 1, tzinfo=UTC)
    account = Account(participant=ISPB, account_number=str(number), account_type="CACC", opening_date=opened)
    owner = Person(type="NATURAL_PERSON", tax_id_number="11122233300", name="Ada")
    return Entry(key=_key(number), key_type="PHONE", account=account, owner=owner)


async def _rate(act: Callable[[], Awaitable[None]], seconds: float) -> tuple[float, float]:
    """Calls a second, and milliseconds of this process's CPU for each: on a busy machine the second says more."""
    done, begun, spent = 0, time.perf_counter(), time.process_time()

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() - begun < seconds:
            await act()
            done += 1

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return done / (time.perf_counter() - begun), 1000 * (time.process_time() - spent) / done


@asynccontextmanager
async def _client(store: str, *, signed: bool) -> AsyncIterator[BridgeClient]:
    with TemporaryDirectory() as given:
        folder, signer = Path(given), self_signed(ISPB, datetime.now(UTC)) if signed else None
        for name, pem in zip(("key.pem", "ours.pem"), signer.pem() if signer else (), strict=False):
            (folder / name).write_bytes(pem)
        command = (sys.executable, "-m", "bench.bridge", given)
        child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None
        url = (await child.stdout.readline()).decode().strip()
        trusted = x509.load_pem_x509_certificate((folder / "theirs.pem").read_bytes()) if signed else None
        settings = BridgeSettings(directory=url, participant=ISPB, signer=signer, trusted=trusted)
        async with connect(store, migrate=True) as batuta, serve(settings, batuta, grace=0.0) as made:
            async with BridgeClient(made.address) as client:
                yield client
        child.terminate()
        await child.wait()


async def _directory(folder: Path) -> None:
    """The other process: until it is ended."""
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


if __name__ == "__main__":
    asyncio.run(_directory(Path(sys.argv[1])))
