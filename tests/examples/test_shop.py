"""The shop of examples/shop runs as its units and its container file say: web application and worker on PostgreSQL."""

import configparser
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

SHOP = Path(__file__).parents[2] / "examples" / "shop"
PROGRAMS = Path(sys.executable).parent


def command(unit: str) -> list[str]:
    """What a unit starts, with the programs of this environment and a port that is free."""
    read = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    read.read(SHOP / unit)
    return _here(shlex.split(read["Service"]["ExecStart"]))


def _here(words: list[str]) -> list[str]:
    words = ["0" if word == "8000" else "127.0.0.1" if word == "0.0.0.0" else word for word in words]
    return [str(PROGRAMS / Path(words[0]).name), *words[1:]]


@contextmanager
def running(words: list[str], url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"BATUTA_DATABASE_URL": url, "SHOP_STAFF_TOKEN": "secret"}
    with (
        log.open("wb") as said,
        subprocess.Popen(words, cwd=SHOP, env=environment, stderr=said, stdout=said) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def until(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def ask(method: str, address: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()} | {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, named, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def listening(log: Path) -> Callable[[], Any]:
    return lambda: re.search(r"running on (http://[\d.:]+)", log.read_text())


@pytest.mark.timeout(180)
def test_an_order_is_made_paid_and_shipped_by_processes_as_the_units_start_them(
    postgres_url: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        web_log = tmp_path / "web"
        web = stack.enter_context(running(command("shop-web.service"), postgres_url, web_log))
        worker = stack.enter_context(running(command("shop-worker@.service"), postgres_url, tmp_path / "worker"))
        shop = until(listening(web_log))[1]
        assert ask("GET", f"{shop}/healthz") == (200, {"status": "ok"})
        assert ask("GET", f"{shop}/readyz") == (204, None)
        assert ask("PUT", f"{shop}/orders/1", {"item": "lamp"}) == (202, {"id": "order-1"})
        status, problem = ask("PUT", f"{shop}/orders/1", {"item": "lamp"})
        assert (status, problem["code"], len(problem["trace_id"])) == (409, "already_started", 32)
        assert ask("GET", f"{shop}/orders/2")[1]["code"] == "unknown_run"
        assert ask("POST", f"{shop}/orders/1/payment?receipt=r-7") == (202, {"id": "order-1"})
        order = until(lambda: (found := ask("GET", f"{shop}/orders/1")[1])["state"] == "completed" and found)
        assert order["result"] == "shipped 1 x lamp, paid by r-7"
        ask("PUT", f"{shop}/orders/3", {"item": "unicorn"})
        until(lambda: ask("GET", f"{shop}/orders/3")[1]["state"] == "failed")
        assert ask("GET", f"{shop}/batuta/api/v1/runs")[0] == 401
        _, runs = ask("GET", f"{shop}/batuta/api/v1/runs", x_staff_token="secret")
        assert [run["id"] for run in runs["runs"]] == ["order-3", "order-1"]
        for process in (web, worker):
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) in (0, -signal.SIGTERM)


@pytest.mark.timeout(120)
def test_the_container_copies_what_it_needs_and_its_command_and_health_check_work(
    postgres_url: str, tmp_path: Path
) -> None:
    lines = [line.partition(" ") for line in (SHOP / "Containerfile").read_text().splitlines() if line[:1] not in "#"]
    copied = {name for word, _, rest in lines if word == "COPY" for name in rest.split()[:-1]}
    assert {"workflows.py", "app.py", "requirements.txt"} == copied
    assert all((SHOP / name).is_file() for name in copied)
    commands = {
        word: json.loads(re.sub(r"^.*?(\[)", r"\1", rest)) for word, _, rest in lines if word in ("CMD", "HEALTHCHECK")
    }
    log = tmp_path / "web"
    with running(_here(commands["CMD"]), postgres_url, log):
        shop = until(listening(log))[1]
        check = [sys.executable, "-c", commands["HEALTHCHECK"][2].replace("http://127.0.0.1:8000", shop)]
        assert subprocess.run(check, check=False, timeout=60).returncode == 0
