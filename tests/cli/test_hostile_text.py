"""Escape sequences and newlines in ids, tags, errors and reasons reach no terminal and forge no log line."""

import asyncio
import json
import logging
import re

import pytest

from batuta import Batuta, Retry, activity, connect, job, publish, workflow
from batuta.cli.common.logs import log_to_stderr
from batuta.printable import one_line, printable, printable_json
from tests.cli.conftest import Cli

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u200f\u202eevil\x7f\nroot: all is well"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@activity(retry=Retry(attempts=1))
async def refuse(why: str) -> None:
    raise ValueError(why)


@workflow
async def hostile(why: str) -> str:
    publish("said", why)
    if why.endswith("!"):
        await refuse(why)
    return why


@job(retry=Retry(attempts=1))
async def hostile_job(why: str) -> None:
    raise ValueError(why)


async def plant(url: str) -> None:
    async with (
        connect(url) as batuta,
        batuta.worker(workflows=[hostile], activities=[refuse], jobs=[hostile_job]),
    ):
        await (await batuta.start(hostile, EVIL, id="good", tags={"who": EVIL}, memo={EVIL: EVIL})).result()
        for handle in (
            await batuta.start(hostile, f"{EVIL}!", id="bad"),
            await batuta.enqueue(hostile_job, EVIL, id="job"),
        ):
            with pytest.raises(Exception, match="evil"):
                await handle.result()
        await batuta.pause_queue("held", EVIL)
        delayed = await batuta.start(hostile, EVIL, id="late", delay=3600)
        await delayed.terminate(EVIL)
        await plant_rooms(batuta)


async def plant_rooms(batuta: Batuta) -> None:
    rule = {"field": "amount", "operator": "greater_than", "value": EVIL}
    check = {"key": "check", "type": "condition", "config": {"rule": rule, "onFalse": "done"}}
    steps = [check, {"key": "done", "type": "end"}]
    flow = {"name": "evil", "description": EVIL, "trigger_type": "paid", "steps": steps}
    await batuta.flows.create(flow)
    await batuta.publish("t", EVIL, id="m")
    await batuta.webhooks.create("https://example.com/", description=EVIL)
    await batuta.api_keys.create("page", "viewer", reason=EVIL)


SHOWING = [
    ("runs", "list"),
    ("runs", "show", "good"),
    ("runs", "show", "bad"),
    ("runs", "show", "late"),
    ("runs", "journal", "good"),
    ("runs", "journal", "bad"),
    ("runs", "journal", "bad", "--full"),
    ("runs", "list", "--retrying"),
    ("status",),
    ("workers",),
    ("runs", "timeline", "bad"),
    ("runs", "diff", "good", "bad"),
    ("runs", "published", "good"),
    ("runs", "show", f"none{EVIL}"),
    ("jobs", "list"),
    ("jobs", "show", "job"),
    ("jobs", "attempts", "job"),
    ("dead-letters", "list"),
    ("dead-letters", "groups"),
    ("dead-letters", "show", "job"),
    ("queues", "list"),
    ("queues", "show", "held"),
    ("audit", "list"),
    ("verify",),
    ("runs", "list", f"--{EVIL}"),
    ("schedules", "show", EVIL),
    ("runs", "start", "hostile", EVIL),
    ("runs", "cancel", "late"),
    ("runs", "result", "bad"),
    ("audit", "verify"),
    (EVIL,),
    ("flows", "list"),
    ("flows", "publish", "evil"),
    ("bus", "topics"),
    ("bus", "messages", "t"),
    ("bus", "messages", EVIL),
    ("webhooks", "list"),
    ("webhooks", "show", EVIL),
    ("api-keys", "list"),
    ("api-keys", "revoke", EVIL),
    ("partners", "open", EVIL),
]


def test_no_command_sends_control_characters_of_strangers_to_the_terminal(cli: Cli, sqlite_url: str) -> None:
    asyncio.run(plant(sqlite_url))
    for words in SHOWING:
        for form in ((), ("--json",)):
            shown = cli(*words, *form).output
            assert shown.strip(), words
            assert not CONTROL.search(shown), (words, shown)
            assert not [line for line in shown.splitlines() if line.startswith("root:")], (words, shown)


def test_a_log_line_of_the_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr()
    logging.getLogger("shop").warning("card %s refused: %s", EVIL, ValueError(EVIL))
    [line] = capsys.readouterr().err.splitlines()
    assert "owned" in line
    assert not CONTROL.search(line)


def test_a_traceback_in_a_log_looks_like_no_other_line(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("batuta.engine")
    with caplog.at_level(logging.INFO):
        try:
            raise ValueError(EVIL)
        except ValueError:
            log.exception("run %s failed", EVIL)
        log.info("%s of %d at %.1f", "one", 2, 3.0)
    first, *rest, last = caplog.text.splitlines()
    assert first.endswith("root: all is well failed")
    assert not CONTROL.search(caplog.text)
    assert all(line.startswith("  ") for line in rest)
    assert last.endswith("one of 2 at 3.0")


def test_text_is_written_out_and_json_means_the_same() -> None:
    assert printable("a\tb\nc\x1b[1m\u009b\u202e\ud800") == r"a" + "\tb\nc" + r"\x1b[1m\x9b\u202e\ud800"
    assert one_line("a\tb\nc\\n") == r"a\tb\nc\n"
    assert printable("olá, ação: 日本") == "olá, ação: 日本"
    text = json.dumps({EVIL: [EVIL]}, ensure_ascii=False)
    assert json.loads(printable_json(text)) == {EVIL: [EVIL]}
    assert not CONTROL.search(printable_json(text))
