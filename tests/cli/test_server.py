"""`batuta server`, `batuta dev` and `batuta api-keys`."""

import json
import re
import signal
import socket
import time
import urllib.request
from pathlib import Path
from subprocess import Popen
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.cli.conftest import DEADLINE, ROOT, Cli, Spawn

OK, USAGE, NOT_FOUND, STORE = 0, 2, 3, 4


def document(cli: Cli, *words: str) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code == OK, result.stderr
    return json.loads(result.stdout)


def test_a_key_is_made_listed_rotated_and_revoked(cli: Cli) -> None:
    made = document(cli, "api-keys", "create", "ann", "--scope", "operator", "--expires", "90d", "--reason", "new")
    assert re.fullmatch(r"batuta_live_[0-9a-f]{12}_[0-9a-f]{72}", made["key"])
    listed = document(cli, "api-keys", "list")["api_keys"]
    assert [(key["id"], key["name"], key["scope"], "key" in key) for key in listed] == [
        (made["id"], "ann", "operator", False)
    ]
    rotated = document(cli, "api-keys", "rotate", made["id"], "--overlap", "1h")
    assert (rotated["scope"], rotated["key"] != made["key"]) == ("operator", True)
    assert cli("api-keys", "revoke", rotated["id"]).stdout == f"key {rotated['id']} is revoked\n"
    assert cli("api-keys", "revoke", "000000000000").exit_code == NOT_FOUND
    verbs = [row["verb"] for row in document(cli, "audit", "list")["rows"]]
    assert verbs == ["revoke api key", "revoke api key", "create api key", "create api key"]


def test_a_key_is_printed_alone_on_stdout(cli: Cli) -> None:
    result = cli("api-keys", "create", "ann")
    assert result.stdout.startswith("batuta_live_")
    assert "it is not shown again" in result.stderr


def test_without_a_key_the_server_refuses_to_listen_to_others(cli: Cli) -> None:
    result = cli("server", "--host", "0.0.0.0", "--port", "0")
    assert (result.exit_code, "there is no API key" in result.stderr) == (USAGE, True)


def test_a_secret_that_is_too_short_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATUTA_SERVER_SECRET", "short")
    assert cli("server", "--port", "0").exit_code == USAGE


def address(process: Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://[\d.]+:\d+", line)
    assert found is not None, line
    return found[0]


def ask(url: str, **headers: str) -> Any:
    asked = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return json.load(answer)


def test_the_server_answers_and_ends_in_order(cli: Cli, spawn: Spawn) -> None:
    key = document(cli, "api-keys", "create", "ann", "--scope", "viewer")["key"]
    server = spawn("server", "--port", "0")
    base = address(server)
    assert ask(f"{base}/readyz")["status"] == "ready"
    with pytest.raises(HTTPError, match="401"):
        ask(f"{base}/api/v1/runs")
    assert ask(f"{base}/api/v1/runs", authorization=f"Bearer {key}") == {"runs": [], "cursor": None}
    stream = urllib.request.urlopen(
        urllib.request.Request(f"{base}/api/v1/events", headers={"authorization": f"Bearer {key}"}), timeout=30
    )
    assert stream.readline() == b"event: hello\n"
    server.send_signal(signal.SIGTERM)
    assert b"event: bye" in stream.read()
    assert server.wait(30) in (0, -signal.SIGTERM)


def test_while_requests_go_on_after_sigterm_health_checks_hear_that_the_server_ends(spawn: Spawn) -> None:
    server = spawn("server", "--port", "0", "--grace", "30s")
    base = address(server)
    token = ask(f"{base}/api/v1/session")["csrf_token"]
    with socket.create_connection(("127.0.0.1", int(base.rpartition(":")[2])), timeout=30) as slow:
        head = (
            f"Host: localhost\r\nX-CSRF-Token: {token}\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n"
        )
        slow.sendall(f"POST /api/v1/runs HTTP/1.1\r\n{head}{{".encode())
        assert ask(f"{base}/readyz")["status"] == "ready"  # by now the server has the request above
        server.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + DEADLINE
        while (found := readiness(base)) == "ready":
            assert time.monotonic() < deadline
        assert found == "the server is shutting down: send requests elsewhere"
        slow.sendall(b'"name": "order"}')
        assert slow.recv(100).startswith(b"HTTP/1.1 201 ")
    assert server.wait(30) in (0, -signal.SIGTERM)


def readiness(base: str) -> str:
    try:
        return str(ask(f"{base}/readyz")["status"])
    except HTTPError as error:
        with error:
            return str(json.load(error)["checks"]["draining"]["why"])


@pytest.mark.parametrize("command", ["server", "dev"])
def test_a_port_that_is_taken_is_said_before_anything_begins(cli: Cli, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = cli(command, "--port", str(port))
    assert (result.exit_code, f"port {port} of 127.0.0.1 is taken: end the program" in result.stderr) == (USAGE, True)


def test_a_database_that_cannot_be_opened_is_said_in_a_sentence(spawn: Spawn, tmp_path: Path) -> None:
    server = spawn("server", "--port", "0", "--url", f"sqlite:///{tmp_path}/missing/shop.db")
    assert server.wait(30) == STORE
    said = (tmp_path / "stderr.log").read_text()
    assert said.startswith(f"error: the folder '{tmp_path}/missing' does not exist: make it")
    assert "Traceback" not in said


def test_an_address_of_another_machine_is_refused(cli: Cli) -> None:
    document(cli, "api-keys", "create", "ann", "--scope", "admin")
    for host, words in (("192.0.2.1", "cannot listen at 192.0.2.1"), ("no host", "is no address of this machine")):
        result = cli("server", "--host", host, "--port", "0")
        assert (result.exit_code, words in result.stderr) == (USAGE, True)


WORKFLOW = """
@batuta.workflow
async def {}() -> int:
    return 1
"""


def test_dev_takes_its_code_once(cli: Cli) -> None:
    said = cli("dev", "shop", "--app", "shop")
    assert said.exit_code == USAGE
    assert "shop and --app shop both name the code" in said.stderr


@pytest.mark.parametrize("code_is", [["mine"], ["--app", "mine"]])
def test_dev_begins_again_when_the_code_changes(spawn: Spawn, tmp_path: Path, code_is: list[str]) -> None:
    module, code = tmp_path / "mine.py", "import batuta\n" + WORKFLOW.format("first")
    module.write_text(code)
    dev = spawn("dev", *code_is, "--port", "0", cwd=tmp_path, BATUTA_DATABASE_URL="", PYTHONPATH=str(ROOT / "src"))
    assert dev.stdout is not None
    assert "(workflows: first)" in dev.stdout.readline()
    module.write_text(code + "async def (")
    deadline = time.monotonic() + DEADLINE
    while "cannot be read" not in (tmp_path / "stderr.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    module.write_text(code + WORKFLOW.format("second"))
    assert "(workflows: first, second)" in dev.stdout.readline()
    dev.send_signal(signal.SIGINT)
    assert dev.wait(30) == 0


def test_dev_without_an_argument_is_a_tour_of_a_living_system(spawn: Spawn) -> None:
    tour = spawn("dev", "--port", "0", BATUTA_DATABASE_URL="")
    base = address(tour)
    found = ask(f"{base}/api/v1/overview?kind=any")
    assert {one["name"] for one in found["workflows"]} >= {"order", "approval", "album", "notify"}
    assert ask(f"{base}/api/v1/schedules")["schedules"][0]["id"] == "orders"
    assert "album-holiday" in {one["id"] for one in ask(f"{base}/api/v1/runs?id_prefix=album")["runs"]}
    assert ask(f"{base}/api/v1/bus")["subscriptions"][0]["topic"] == "shipments"
    with urllib.request.urlopen(base, timeout=30) as page:
        assert b"Batuta" in page.read()
    tour.send_signal(signal.SIGINT)
    assert tour.wait(30) == 0
