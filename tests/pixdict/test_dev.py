"""Everything in one process: directory, Bridge, monitor, server and dashboard, over real sockets."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlparse

import httpcore2
import msgspec
import pytest
from click.testing import CliRunner

from batuta import connect
from batuta.cache import RedisCache
from pixdict.cli import root
from pixdict.connect.monitor import SCHEDULE_ID
from pixdict.dev.stand import ISPB, OTHER, Options, stand
from pixdict.dev.valkey import own_valkey
from tests.cache.conftest import PATIENT, valkey
from tests.pixdict.core.kit import claim, eventually, key
from tests.pixdict.directory.kit import CPF, PHONE, Bank

__all__ = ["valkey"]

FAST = Options(port=0, open_for=1.0, wait=20.0)


class Browser:
    """Asks the dashboard."""

    def __init__(self, url, pool):
        self.url, self.pool, self.headers = url, pool, {}

    @classmethod
    @asynccontextmanager
    async def opened(cls, url):
        async with httpcore2.AsyncConnectionPool() as pool:
            browser = cls(url, pool)
            _, body = await browser("GET", "/api/v1/session")
            browser.headers = {"x-csrf-token": msgspec.json.decode(body)["csrf_token"]}
            yield browser

    async def __call__(self, method, path, body=None):
        content = None if body is None else msgspec.json.encode(body)
        headers = {"content-type": "application/json", **self.headers}
        answer = await self.pool.request(method, self.url + path, headers=list(headers.items()), content=content)
        return answer.status, answer.content

    async def page(self, name):
        status, body = await self("GET", f"/api/v1/pages/{name}")
        assert status == 200, body
        return msgspec.json.decode(body)

    async def act(self, name, body=None):
        status, answer = await self("POST", f"/api/v1/pages/simulator/{name}", body or {})
        return status, msgspec.json.decode(answer)


async def test_a_balance_that_runs_low_is_an_alert_on_the_page_and_in_the_metrics(tmp_path):
    async with stand(tmp_path, FAST) as running, Browser.opened(running.url) as browser:
        client = running.client
        assert await browser.act("read-claims", {"count": 40}) == (200, {"message": "40 NotFound"})
        shown = await browser.page("simulator")
        balances = {row[0]: row[1:] for row in shown["tables"][1]["rows"]}
        assert balances["CLAIMS_READ"] == [17_960, 17_960]
        status, _ = await browser.act("set-a-balance", {"policy": "KEYS_CHECK", "tokens": -3})
        assert status == 200
        status, said = await browser.act("check-now")
        assert status == 200
        run_id = said["message"].split()[-1].rstrip(".")
        assert await (await client.get(run_id)).result() == 1
        page = await browser.page("dict")
        first = page["gauges"][0]["gauges"][0]
        assert (first["name"], first["value"], first["label"]) == ("KEYS_CHECK", -3, "CRITICAL")
        assert page["tables"][0]["rows"][0][3].startswith("URGENT: Policy KEYS_CHECK")
        _, metrics = await browser("GET", "/metrics")
        assert b'dict_rate_limit_available_tokens{category="A",policy_name="KEYS_CHECK"} -3.0' in metrics
        assert (await client.schedules.get(SCHEDULE_ID)).id == SCHEDULE_ID


async def test_a_payment_gives_tokens_back_at_the_directory_and_in_the_count_of_the_bridge(tmp_path):
    async with stand(tmp_path, FAST) as running, Browser.opened(running.url) as browser:
        Bank(running.directory.service, OTHER).create()
        await running.speaks.get_entry(PHONE, payer_id=CPF, end_to_end_id="E1")
        paid = {"end_to_end_id": "E1", "payer_id": CPF}
        said = "Look-ups that get tokens back: the directory has {0}, the Bridge {0}."
        assert (await browser.act("send-a-payment", paid))[1]["message"] == said.format(1)
        assert (await browser.act("send-a-payment", paid))[1]["message"] == said.format(0)
        assert (await browser.act("send-a-payment", paid | {"payer_id": "1"}))[0] == 400
        balances = {row[0]: row[1:] for row in (await browser.page("simulator"))["tables"][1]["rows"]}
        assert balances["ENTRIES_READ_PARTICIPANT_ANTISCAN"] == [50_000, 50_000]


async def test_the_knobs_of_the_simulator_work_and_refuse_what_is_wrong(tmp_path):
    async with stand(tmp_path, FAST) as running, Browser.opened(running.url) as browser:
        assert (await browser.act("add-a-fault", {"operation": "nothing"}))[0] == 400
        assert (await browser.act("add-a-fault", {"kind": "explode"}))[0] == 400
        assert (await browser.act("set-a-balance", {"policy": "KEYS_CHECK", "token": 9}))[0] == 400, (
            "a slip, and no zero"
        )
        assert (await browser.act("set-a-balance", {"policy": "NONE", "tokens": 1}))[0] == 400
        assert (await browser.act("advance-time", {"minutes": -1}))[0] == 400
        assert (await browser.act("add-a-fault", {"operation": "getClaim", "times": 3, "status": 503}))[0] == 200
        assert "getClaim" in str((await browser.page("simulator"))["tables"][0])
        assert (await browser.act("read-claims", {"count": 1}))[1]["message"] == "1 BridgeUnavailable"
        assert (await browser.act("clear-faults"))[0] == 200
        before = running.directory.now()
        assert (await browser.act("advance-time", {"minutes": 5}))[0] == 200
        assert running.directory.now() - before >= 300_000_000


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
async def test_the_command_prints_its_addresses_and_ends_in_order(tmp_path, ending):
    command = [sys.executable, "-m", "pixdict", "dev", "--port", "0", "--folder", str(tmp_path / "here")]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    running = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=env)
    assert running.stdout is not None
    said = {}
    while b"Ctrl-C" not in (line := await said_by(running)):
        what, _, where = line.decode().partition(" ")
        said[what] = where.strip()
    running.send_signal(ending)
    assert await running.wait() == 0
    assert urlparse(said["DICT"]).path == "/dict"
    assert f"participant {ISPB}" in said["directory"]
    assert (tmp_path / "here" / "directory.db").exists()


async def said_by(process):
    async with asyncio.timeout(50):
        return await process.stdout.readline()


def address_in(said):
    found = re.search(r"http://[\d.:]+", said)
    assert found, said
    return found[0]


@asynccontextmanager
async def part(*arguments):
    """A part as a process, and what it says first."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "pixdict", *arguments]
    running = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=env)
    try:
        yield (await said_by(running)).decode()
    finally:
        running.terminate()
        assert await running.wait() in (0, -signal.SIGTERM)


async def test_all_parts_run_as_processes_of_their_own_on_postgresql_and_valkey(
    postgres_url, empty_postgres_url, valkey, tmp_path
):
    shared = ["--store", postgres_url, "--redis", valkey.url]
    async with AsyncExitStack() as stack:
        here = ["--listen", "127.0.0.1:0"]
        directory = part("serve", "--role", "directory", *here, "--path", f"{tmp_path}/d.db")
        beginning = [directory, part("serve", "--role", "core", *shared, *here, "--database", empty_postgres_url)]
        said, core = await asyncio.gather(*(stack.enter_async_context(one) for one in beginning))
        there = ["--directory", address_in(said), *here]
        async with part("serve", "--role", "bridge", *shared, *there) as said:
            address = said.split(" at ")[1].split(";")[0]
            more = ["--bridge", address, "--database", empty_postgres_url, "--metrics-port", "0"]
            async with part("serve", "--role", "connect", *shared, *more) as said:
                assert "metrics at http://127.0.0.1:" in said
                async with Browser.opened(address_in(core)) as browser:
                    status, body = await browser("POST", "/api/v1/keys", key())
                    assert status == 201, body
                    _, found = await browser("GET", "/api/v1/keys/%2B5561988887777")
                    assert msgspec.json.decode(found)["status"] == "ACTIVE"
                async with connect(postgres_url) as client:
                    handle = await client.schedules.trigger(SCHEDULE_ID)
                    assert await handle.result() == 0
                    known = {one.id for one in await client.schedules.list()}
                    assert known >= {SCHEDULE_ID, "poll-claims", "reconcile-keys"}
                async with Browser.opened(address_in(core)) as browser:
                    assert len((await browser.page("dict"))["gauges"][0]["gauges"]) == 29
                    assert (await browser.page("keys"))["tables"][0]["rows"][0][:3] == [PHONE, "PHONE", "ACTIVE"]
                    for name in ("claims", "reconciliation"):
                        assert (await browser.page(name))["tables"][0]["rows"] == []


async def test_a_key_made_over_http_is_on_the_page_of_keys_with_its_run(tmp_path):
    async with stand(tmp_path, FAST) as running, Browser.opened(running.url) as browser:
        status, body = await browser("POST", "/api/v1/keys", key())
        assert status == 201, body
        id = msgspec.json.decode(body)["entry_id"]
        [row] = (await browser.page("keys"))["tables"][0]["rows"]
        assert row[:3] == ["+5561988887777", "PHONE", "ACTIVE"]
        assert row[4:7] == [{"run": f"create-{id}"}, "create", "done"]
        stored = running.directory.storage.entry("+5561988887777")
        assert stored is not None
        assert row[7] == stored.cid[:12]
        assert str((await (await running.client.get(f"create-{id}")).describe()).state) == "completed"
        assert "reconcile-keys" in {one.id for one in await running.client.schedules.list()}


async def test_a_claim_of_another_institution_is_on_the_page_of_claims_with_its_run(tmp_path):
    async with stand(tmp_path, FAST) as running, Browser.opened(running.url) as browser:
        assert (await browser("POST", "/api/v1/keys", key()))[0] == 201
        status, said = await browser.act("others-claim-a-key", {"key": "+5561988887777", "kind": "OWNERSHIP"})
        assert status == 200, said
        id = said["message"].split()[1]

        async def shown():
            return (await browser.page("claims"))["tables"][0]["rows"]

        row = (await eventually(shown))[0]
        assert row[:3] == ["+5561988887777", "OWNERSHIP", "DONOR"]
        assert row[6:8] == [{"run": f"answer-{id}"}, OTHER]


async def test_a_key_of_another_institution_can_be_claimed(tmp_path):
    async with stand(tmp_path, FAST) as running, Browser.opened(running.url) as browser:
        given = {"key": "+5561977776666", "tax_id_number": "11122233300"}
        assert (await browser.act("others-create-a-key", given))[0] == 200
        paid = "payer_id=11122233300&end_to_end_id=E1234567820261119"
        status, found = await browser("GET", f"/api/v1/lookups/%2B5561977776666?{paid}")
        assert (status, msgspec.json.decode(found)["account"]["participant"]) == (200, OTHER)
        status, said = await browser("POST", "/api/v1/claims", claim("PORTABILITY", "+5561977776666"))
        assert status == 201, said
        [row] = (await browser.page("claims"))["tables"][0]["rows"]
        assert (row[2], row[3], row[8]) == ("CLAIMER", "OPEN", OTHER)
        assert (await browser.act("others-create-a-key", {"key": "nothing"}))[0] == 400
        assert (await browser.act("others-claim-a-key", {"key": "+5561900000000"}))[0] == 400
        assert (await browser.act("others-claim-a-key", {"kind": "THEFT"}))[0] == 400


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--store", "mysql://x"], "mysql"),
        (["--redis", "http://x"], "redis://"),
        (["--wait", "-1"], "--wait"),
        (["--open-for", "0"], "--open-for"),
        (["--bus", "kafka://x"], "kafka"),
        (["--folder", f"{__file__}/here"], "Error: [Errno"),
    ],
)
def test_dev_with_wrong_options_says_so_and_ends(tmp_path, options, said):
    result = CliRunner().invoke(root, ["dev", "--port", "0", "--folder", str(tmp_path), *options])
    assert result.exit_code != 0
    assert said in result.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "there is no API key"),
        (["--participant", "1"], "is not an ISPB"),
        (["--redis", "http://x"], "redis://"),
        (["--replica", "mysql://x"], "mysql"),
    ],
)
def test_core_with_wrong_options_says_so_and_ends(tmp_path, options, said):
    given = ["serve", "--role", "core", "--store", f"sqlite:///{tmp_path}/batuta.db", *options]
    result = CliRunner().invoke(root, given)
    assert result.exit_code != 0
    assert said in result.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--participant", "1"], "is not an ISPB"),
        (["--directory", "here"], "must begin with http"),
        (["--key", "a.pem"], "belong together"),
        (["--directory-certificate", "nothing.pem"], "nothing.pem"),
        (["--listen", "256.0.0.1:1"], "cannot listen"),
        (["--store", "mysql://x"], "mysql"),
    ],
)
def test_a_part_with_wrong_options_says_so_and_ends(tmp_path, options, said):
    given = ["serve", "--role", "bridge", "--store", f"sqlite:///{tmp_path}/batuta.db", *options]
    result = CliRunner().invoke(root, given)
    assert result.exit_code != 0
    assert said in result.output


async def test_its_valkey_runs_in_any_folder_and_keeps_its_password_private(tmp_path):
    folder = tmp_path / 'Ana "Bia" \\ João'
    folder.mkdir()
    settings = folder / "valkey.conf"
    settings.write_text("of the last time")
    settings.chmod(0o644)
    async with own_valkey(folder) as url:
        assert url is not None
        assert urlparse(url).password in settings.read_text()
        assert settings.stat().st_mode & 0o777 == 0o600
        backend = await RedisCache.connect(url, PATIENT)
        assert (await backend._client.config_get("dir"))["dir"] == str(folder)
        await backend.close()
