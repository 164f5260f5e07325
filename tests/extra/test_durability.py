"""What the kernel is asked to do when something must be durable, watched with strace."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from batuta.testing.servers import PostgresServer

pytestmark = pytest.mark.extra

COMMITS = 20


@contextmanager
def watched(pid: int, trace: Path) -> Iterator[None]:
    """Write each sync of the process and its children to ``trace`` while the block runs."""
    command = ["strace", "-f", "-q", "-e", "trace=fsync,fdatasync", "-o", str(trace), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            _wait_until_attached(pid, tracer)
            yield
        finally:
            tracer.terminate()


def _wait_until_attached(pid: int, tracer: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 20
    while "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text():
        assert tracer.poll() is None, tracer.stderr.read() if tracer.stderr else ""
        assert time.monotonic() < deadline, "strace did not attach"
        time.sleep(0.01)


@pytest.mark.parametrize(("fsync", "least", "most"), [(True, COMMITS, 1_000_000), (False, 0, 0)])
async def test_a_commit_is_synced_exactly_when_the_server_was_asked_to_be_durable(
    fsync: bool, least: int, most: int, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    with PostgresServer(fsync=fsync) as server:
        assert server.pid is not None
        with watched(server.pid, trace):
            connection = await asyncpg.connect(server.url)
            await connection.execute("CREATE TABLE things (n int)")
            for n in range(COMMITS):
                await connection.execute("INSERT INTO things VALUES ($1)", n)
            await connection.close()
    syncs = trace.read_text().count("sync(")
    assert least <= syncs <= most
