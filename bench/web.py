"""`python -m bench.web`: requests a second of the server, over a bare Starlette handler beside it. Needs wrk.

One server process, one bare process, both under uvicorn with the same options, measured by turns. The bare handler
returns the bytes that the server answered, or reads the body and returns what the server answers to a start.
"""

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.finished import fill
from bench.places import STORES, Places

RUNS: Final = 100_000
ROUNDS: Final = 3
STREAMS: Final = 200
BARS: Final = {"list": 0.15, "start": 0.25}
IDLE_BAR: Final = 0.25
BODY: Final = json.dumps({"name": "order", "input": [{"item": "book", "count": 1}], "tags": {"shop": "one"}})
_UNITS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0}


class Unmeasured(Exception):
    """A measurement that cannot be made here."""


@contextmanager
def process(*command: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that prints where it listens."""
    started = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        if started.stdout is None:
            raise Unmeasured("the process has no output")
        found = re.search(r"http://[^/ ]+", started.stdout.readline())
        if found is None:
            raise Unmeasured(f"{' '.join(command)} did not say where it listens")
        yield started, found[0]
    finally:
        started.terminate()
        started.wait(30)


Served = tuple[str, int]
"""Where a process listens, and its id."""


def wrk(served: Served, seconds: float, connections: int, script: Path | None) -> dict[str, float]:
    """Requests a second, the 99th percentile in milliseconds, and milliseconds of processor time a request."""
    url, pid = served
    before = _cpu(pid)
    options = ["-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", *([f"-s{script}"] if script else [])]
    said = subprocess.run(["wrk", *options, url], capture_output=True, text=True, check=True).stdout
    if wrong := re.search(r"Non-2xx or 3xx responses: (\d+)|Socket errors: .*", said):
        raise Unmeasured(f"{url}: {wrong[0]}")
    rate, tail = re.search(r"Requests/sec:\s+([\d.]+)", said), re.search(r"99%\s+([\d.]+)(us|ms|s)", said)
    if rate is None or tail is None:
        raise Unmeasured(f"wrk said: {said}")
    spent = (_cpu(pid) - before) * 1000 / (float(rate[1]) * seconds)
    return {"per_s": float(rate[1]), "p99_ms": float(tail[1]) * _UNITS[tail[2]], "cpu_ms": spent}


def by_turns(
    ours: Served, bare: Served, connections: int, seconds: float, script: Path | None = None
) -> dict[str, float]:
    """The median of neighbours: the bare handler, the server, and so on."""
    rounds = [(wrk(bare, seconds, connections, script), wrk(ours, seconds, connections, script)) for _ in range(ROUNDS)]
    return {
        "share": median(us["per_s"] / other["per_s"] for other, us in rounds),
        "per_s": median(us["per_s"] for _, us in rounds),
        "p99_ms": median(us["p99_ms"] for _, us in rounds),
        "bare_per_s": median(other["per_s"] for other, _ in rounds),
        "cpu_share": median(other["cpu_ms"] / us["cpu_ms"] for other, us in rounds),
        "cpu_ms": median(us["cpu_ms"] for _, us in rounds),
    }


def measure(url: str, seconds: float, directory: Path) -> dict[str, dict[str, float]]:
    posts = directory / "post.lua"
    headers = 'wrk.headers["Content-Type"] = "application/json"'
    with process("-m", "batuta", "server", "--url", url, "--port", "0", BATUTA_SERVER_SECRET="x" * 32) as (
        served,
        ours,
    ):
        session = json.load(urllib.request.urlopen(f"{ours}/api/v1/session"))
        posts.write_text(
            f"wrk.method = 'POST'\nwrk.body = [[{BODY}]]\n{headers}\n"
            f'wrk.headers["X-CSRF-Token"] = "{session["csrf_token"]}"\n'
        )
        page = urllib.request.urlopen(f"{ours}/api/v1/runs?limit=50").read()
        (directory / "page.json").write_bytes(page)
        with process("-m", "bench.web", "--bare", str(directory / "page.json")) as (plain, bare):
            return {
                "list": by_turns((f"{ours}/api/v1/runs?limit=50", served.pid), (bare, plain.pid), 16, seconds),
                "start": by_turns((f"{ours}/api/v1/runs", served.pid), (bare, plain.pid), 64, seconds, posts),
                "streams": asyncio.run(streams(ours, served.pid, seconds)),
            }


async def streams(ours: str, pid: int, seconds: float) -> dict[str, float]:
    """The share of a core that the server needs for streams of which nothing is heard."""
    host, _, port = ours.removeprefix("http://").partition(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(STREAMS)]
    for reader, writer in opened:
        writer.write(f"GET /api/v1/events HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
        await reader.readuntil(b"hello")
    await asyncio.sleep(2)
    before = _cpu(pid)
    await asyncio.sleep(seconds)
    used = (_cpu(pid) - before) / seconds
    for _, writer in opened:
        writer.close()
    return {"open": STREAMS, "core_share": used}


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve_bare(page: Path) -> None:
    """A process of its own: the smallest handlers that do the same to the wire."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    body = page.read_bytes()

    async def listed(_: Request) -> Response:
        return Response(body, media_type="application/json")

    async def started(request: Request) -> Response:
        await request.body()
        return Response(b'{"id":"x","run_id":"x","workflow":"order","is_new":true}', 201, media_type="application/json")

    app = Starlette(routes=[Route("/", listed), Route("/", started, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, server_header=False))
    begin = server.startup

    async def startup(sockets: Any = None) -> None:
        await begin(sockets)
        print(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/", flush=True)

    server.startup = startup  # type: ignore[method-assign]
    server.run()


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.web")
    options.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--stores", default=",".join(STORES))
    given = options.parse_args()
    if given.bare:
        serve_bare(given.bare)
        return 0
    if shutil.which("wrk") is None:
        raise Unmeasured("wrk is not there: install the Debian package wrk")
    places, missed = Places(), []
    try:
        for store in given.stores.split(","):
            url = places.fresh(store)
            fill(url, RUNS)
            time.sleep(1)
            with tempfile.TemporaryDirectory() as directory:
                found = measure(url, given.seconds, Path(directory))
            for name, figures in found.items():
                shown = "  ".join(f"{figure} {value:,.3g}" for figure, value in figures.items())
                print(f"  {name:<8} {store:<8} {shown}", flush=True)
                missed += [name] if figures.get("share", 1) < BARS.get(name, 0) else []
                missed += [name] if figures.get("core_share", 0) > IDLE_BAR else []
    finally:
        places.close()
    print(f"missed: {', '.join(missed)}" if missed else "every bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
