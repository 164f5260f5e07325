"""The ledger: a process outside the system that knows what really happened.

Run as `python -m chaos.ledger DIRECTORY`: listens on a free loopback port, which it prints. Each line that comes is
appended to the file of its case and synced before the sender gets its answer, so that no crash of a worker, and none
of the tester, takes back what was recorded. Lines of one case are in the order in which they came.
It holds effects (begin, end, fail) and the history of client calls
(invoke, then ok, fail or info: info means that nobody knows).
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

ANSWER = b"+\n"
PATIENCE_S = 30.0


class Record(Struct, omit_defaults=True):
    """One line. `what` is begin, end, fail or token for an effect (of jobs also page, saved, enter and leave);
    invoke, ok, fail, info or rejected for a client's call `op`; and gone when a process has closed its connection, as
    the kernel does for one that was killed."""

    case: str
    what: str
    key: str = ""
    """The activity's stable key, or the id of the run that a call is about."""
    name: str = ""
    run: str = ""
    attempt: int = 0
    op: str = ""
    """Empty for effects."""
    message: str = ""
    """What a call sent: the id of a signal or update, or the key of the activity that it completes."""
    once: bool = False
    pid: int = 0
    at: float = 0.0
    """When the sender was about to send it, wall time of the machine that all share. The ledger may get it much later,
    when the sender was stopped in between."""
    text: str = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


# -- the process


class _Books:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, int] = {}

    def write(self, record: Record) -> None:
        file = self._files.get(record.case)
        if file is None:
            path = path_of(self._directory, record.case)
            file = self._files[record.case] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, _encoder.encode(record) + b"\n")
        os.fdatasync(file)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        record: Record | None = None
        try:
            while line := await reader.readline():
                record = _decoder.decode(line)
                self.write(record)
                writer.write(ANSWER)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # a killed worker
        finally:
            writer.close()
            if record is not None:
                self.write(Record(case=record.case, what="gone", pid=record.pid, at=time.time()))


async def _serve(directory: Path) -> None:
    server = await asyncio.start_server(_Books(directory).serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    # The tester holds the other end of standard input: the kernel closes it however the tester ends.
    await asyncio.to_thread(sys.stdin.buffer.read)


# -- those who write


class LedgerClient:
    """A connection to the ledger, for any thread. `write` returns when the record is on the disk."""

    def __init__(self, port: int, case: str) -> None:
        self._case = case
        self._lock = threading.Lock()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def write(self, what: str, **fields: object) -> None:
        record = msgspec.convert(
            {"case": self._case, "what": what, "pid": os.getpid(), "at": time.time(), **fields}, Record
        )
        with self._lock:
            self._socket.sendall(_encoder.encode(record) + b"\n")
            if self._socket.recv(len(ANSWER)) != ANSWER:
                raise ConnectionError("the ledger did not answer")

    def close(self) -> None:
        self._socket.close()


# -- those who read


def path_of(directory: Path, case: str) -> Path:
    return directory / f"{case}.jsonl"


class Account:
    """All that the ledger knows about one case."""

    def __init__(self, records: Sequence[Record], size: int = 0) -> None:
        self.records = records
        self._size = size

    def refreshed(self, directory: Path, case: str) -> Account:
        """The account as it is now; this one when nothing was added."""
        path = path_of(directory, case)
        size = path.stat().st_size if path.exists() else 0
        if size == self._size:
            return self
        if size < self._size:  # it is another file
            return Account([]).refreshed(directory, case)
        with path.open("rb") as file:
            file.seek(self._size)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        added = [_decoder.decode(line) for line in data.splitlines()]
        return Account([*self.records, *added], self._size + len(data))

    def effects(self, what: str) -> list[Record]:
        return [record for record in self.records if record.what == what and not record.op]

    def calls(self, op: str, what: str) -> list[Record]:
        return [record for record in self.records if record.op == op and record.what == what]

    def executed_again(self) -> Counter[tuple[str, int]]:
        """How often each (key, attempt) was begun beyond the first time."""
        begun = Counter((record.key, record.attempt) for record in self.effects("begin"))
        return Counter({which: times - 1 for which, times in begun.items() if times > 1})

    def storms(self, deaths: int) -> dict[str, int]:
        """Activities, by key, that were begun more often than their attempts and so many deaths allow."""
        begun = Counter(record.key for record in self.effects("begin"))
        tried: dict[str, int] = {}
        for record in self.effects("begin"):
            tried[record.key] = max(record.attempt, tried.get(record.key, 0))
        return {key: times for key, times in begun.items() if times > tried[key] + deaths}


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
