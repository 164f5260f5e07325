"""keys: creations of keys from HTTP to HTTP (core, idempotency, bus, workflow, gRPC, Bridge, XML, simulator, cache,
PostgreSQL), each part a process of its own, without signatures and with all of them made and verified; then cached
look-ups over a bare handler with one Redis GET, by turns.

    python -m bench --only keys --systems batuta"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import asyncpg

from batuta import connect
from batuta.testing.valkey import ValkeyServer
from bench.bridge import ISPB
from bench.child import Figures, Task, latency, loop_factory
from chaos.pix.customers import key_body
from chaos.pix.parts import PLENTY, Part, free_ports
from pixdict.dict.signatures import self_signed

CREATORS: Final = 32
READERS: Final = 16
BURST_S: Final = 1.0
COMPANY: Final = "+5511900000001"
LOOK_UP: Final = "?payer_id=11222333000181&end_to_end_id=E1"


async def keys(task: Task) -> Figures:
    """Rates, latencies, and the processor time that each part spends on a creation."""
    figures: dict[str, float] = {}
    numbers = count(1_000)
    for mode in ("off", "verify"):
        async with _parts(task.url, signed=mode == "verify") as (url, key, redis, pids):
            figures |= {
                f"creations_{mode}_{name}": value
                for name, value in (await _creations(url, key, pids, numbers, task)).items()
            }
            if mode == "off":
                figures |= await _look_ups(url, key, redis, pids["core"][0], task.seconds / 6)
    return figures


async def _creations(url: str, key: str, pids: dict[str, list[int]], numbers: Iterator[int], task: Task) -> Figures:
    async with _callers(url, CREATORS, key) as callers:
        await asyncio.gather(*(_create(caller, numbers) for caller in callers))  # everything is imported and connected
        spent: list[float] = []
        before = {part: sum(map(_cpu, ids)) for part, ids in pids.items()}
        begun, ours = time.perf_counter(), time.process_time()

        async def caller(one: "Caller") -> None:
            while time.perf_counter() - begun < task.seconds / 3:
                asked = time.perf_counter()
                await _create(one, numbers)
                spent.append((time.perf_counter() - asked) * 1000)

        await asyncio.gather(*map(caller, callers))
        took = time.perf_counter() - begun
    cpu = {part: sum(map(_cpu, ids)) - before[part] for part, ids in pids.items()} | {
        "load": time.process_time() - ours
    }
    parts = {f"cpu_ms_{part}": 1000 * seconds / len(spent) for part, seconds in cpu.items()}
    return {
        "per_s": len(spent) / took,
        **latency(spent),
        **parts,
        "cpu_ms": sum(parts.values()),
        "per_cpu_s": 1000 / sum(parts.values()),
    }


async def _create(caller: "Caller", numbers: Iterator[int]) -> None:
    number = next(numbers)
    status, said = await caller.ask("POST", "/api/v1/keys", key_body(number), f"bench-{number}")
    if status != 201:
        raise AssertionError(f"key {number}: {status} {said!r}")


async def _look_ups(url: str, key: str, redis: str, pid: int, seconds: float) -> Figures:
    """The median of neighbours: the bare handler, ours, and so on."""
    async with _callers(url, 1, key) as (one,):
        company = {"type": "LEGAL_PERSON", "tax_id_number": "11222333000181", "name": "Padaria Ltda"}
        body = key_body(0) | {"key_value": COMPANY, "owner": company}
        status, said = await one.ask("POST", "/api/v1/keys", body)
        assert status == 201, said
        status, said = await one.ask("GET", f"/api/v1/lookups/{COMPANY}{LOOK_UP}")
        assert status == 200, said
    async with _process("bench.keys", redis, said.decode()) as (bare, bare_pid):
        async with _callers(url, READERS, key) as ours, _callers(bare, READERS, key) as others:
            path = f"/api/v1/lookups/{COMPANY}{LOOK_UP}"
            await asyncio.gather(_reads(others, "/", bare_pid), _reads(ours, path, pid))  # warm
            pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
            end = time.perf_counter() + seconds
            while time.perf_counter() < end or len(pairs) < 3:
                pairs.append((await _reads(others, "/", bare_pid), await _reads(ours, path, pid)))
    median = statistics.median
    return {
        "lookups_per_s": median(our[0] for _, our in pairs),
        "lookups_cpu_ms": median(our[1] for _, our in pairs),
        "bare_lookups_per_s": median(plain[0] for plain, _ in pairs),
        "bare_lookups_cpu_ms": median(plain[1] for plain, _ in pairs),
        "lookups_over_bare": median(our[0] / plain[0] for plain, our in pairs),
        "lookups_cpu_over_bare": median(plain[1] / our[1] for plain, our in pairs),
    }


async def _reads(callers: "list[Caller]", path: str, pid: int) -> tuple[float, float]:
    """Reads a second, and milliseconds of that process's processor time for each."""
    done, begun, before = 0, time.perf_counter(), _cpu(pid)

    async def caller(one: "Caller") -> None:
        nonlocal done
        while time.perf_counter() - begun < BURST_S:
            status, said = await one.ask("GET", path)
            assert status == 200, said
            done += 1

    await asyncio.gather(*map(caller, callers))
    return done / (time.perf_counter() - begun), 1000 * (_cpu(pid) - before) / done


# -- who asks


class Caller:
    """One connection that is kept open, with little work on this side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, key: str) -> None:
        self._reader, self.writer = reader, writer
        self._head = f"Host: {host}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"

    async def ask(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, bytes]:
        content = b"" if body is None else json.dumps(body).encode()
        more = f"Idempotency-Key: {key}\r\n" if key else ""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{more}Content-Length: {len(content)}\r\n\r\n"
        self.writer.write(head.encode() + content)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        _, _, rest = answer.partition(b"content-length:")
        return int(answer[9:12]), await self._reader.readexactly(int(rest.partition(b"\r\n")[0]))


@asynccontextmanager
async def _callers(url: str, number: int, key: str) -> AsyncIterator[list[Caller]]:
    host = url.removeprefix("http://").strip("/")
    name, _, port = host.partition(":")
    found = [Caller(*(await asyncio.open_connection(name, int(port))), host, key) for _ in range(number)]
    try:
        yield found
    finally:
        for one in found:
            one.writer.close()


# -- who answers


@asynccontextmanager
async def _parts(store: str, *, signed: bool) -> AsyncIterator[tuple[str, str, str, dict[str, list[int]]]]:
    """Where core is, a key for it, where Redis is, and the processes of each part."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        signer = self_signed(ISPB, datetime.now(UTC)) if signed else None
        for name, pem in zip(("key.pem", "ours.pem"), signer.pem() if signer else (), strict=False):
            (folder / name).write_bytes(pem)
        redis = stack.enter_context(ValkeyServer()).url
        directory, pid = await stack.enter_async_context(_process("bench.bridge", "directory", str(folder)))
        client = await stack.enter_async_context(connect(store, migrate=True))
        key = (await client.api_keys.create(f"bench-{time.time_ns()}", "operator")).key
        ports = free_ports(2)
        bridge, core = (f"127.0.0.1:{port}" for port in ports)
        common = ["--store", store, "--redis", redis, "--participant", ISPB]
        pems = [("--key", "key.pem"), ("--certificate", "ours.pem"), ("--directory-certificate", "theirs.pem")]
        signs = [word for option, name in pems for word in (option, str(folder / name))] if signed else []
        limits = [word for limit in PLENTY for word in ("--limit", limit)]
        database = f"sqlite:///{folder}/pixdict.db"
        parts = [
            Part("bridge", [*common, "--listen", bridge, "--directory", directory, *signs], folder / "bridge.log"),
            Part(
                "connect",
                [*common, "--bridge", bridge, "--database", database],
                folder / "connect.log",
            ),
            Part("core", [*common, "--bridge", bridge, "--listen", core, *limits], folder / "core.log"),
        ]
        for part in parts:
            stack.enter_context(_running(part))
        for part in parts:
            await part.ready()
        await asyncio.sleep(3)  # core has heard that there is a key, and the workers have begun
        pids = {part.role: [part.pid] for part in parts} | {"directory": [pid], "postgres": await _backends(store)}
        yield f"http://{core}", key, redis, pids


@contextmanager
def _running(part: Part) -> Iterator[None]:
    part.start()
    try:
        yield
    finally:
        part.kill()


@asynccontextmanager
async def _process(module: str, *arguments: str) -> AsyncIterator[tuple[str, int]]:
    """A process that prints where it listens, and its id."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        yield (await child.stdout.readline()).decode().strip(), child.pid
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def _backends(store: str) -> list[int]:
    """Processes of the PostgreSQL server that serve us."""
    if not store.startswith("postgres"):
        return []
    connection = await asyncpg.connect(store)
    found = await connection.fetch("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    await connection.close()
    return [row["pid"] for row in found]


def _cpu(pid: int) -> float:
    """Seconds; of a process that has ended, 0."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _bare(redis: str, body: str) -> None:
    """A process of its own: one GET, and what it gave as the answer."""
    import uvicorn
    from redis.asyncio import Redis
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    client = Redis.from_url(redis)
    await client.set("bench:bare", body, ex=3600)

    async def look_up(_: Request) -> Response:
        return Response(await client.get("bench:bare"), media_type="application/json")

    [port] = free_ports(1)
    app = Starlette(routes=[Route("/", look_up)])
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, access_log=False, server_header=False))
    serving: Awaitable[None] = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(f"http://127.0.0.1:{port}", flush=True)
    await serving


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:  # as pixdict serve has it
        runner.run(_bare(*sys.argv[1:]))
