"""The page "DICT"."""

from datetime import UTC, datetime, timedelta

from starlette.applications import Starlette

import batuta
from batuta.server import dashboard
from pixdict.connect.database import SqliteDatabase
from pixdict.connect.monitor import MonitorTables
from pixdict.connect.monitor.analysis import analyze, state_of
from pixdict.connect.monitor.page import dict_page, gauges_of, spoken
from tests.pixdict.monitor.kit import policy
from tests.server.web import Web

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


def readings(name, *tokens, capacity=1000, end=NOON):
    return [
        state_of(policy(name, one, capacity), end - timedelta(minutes=5 * (len(tokens) - 1 - n)))
        for n, one in enumerate(tokens)
    ]


def merged(*rows):
    return sorted((state for one in rows for state in one), key=lambda state: state.checked_at)


def test_policies_that_run_dry_come_first_with_a_forecast():
    states = merged(
        readings("FULL", 1000, 1000, 1000),
        readings("FALLING", 500, 350, 200),
        readings("EMPTY", 40, 20, -10),
        readings("NONE", 0, 0, 0, capacity=0),
    )
    shown = gauges_of(states, NOON + timedelta(minutes=1))
    assert [(one.name, one.tone, one.label) for one in shown.gauges] == [
        ("EMPTY", "fail", "CRITICAL"),
        ("FALLING", "retry", "WARNING"),
        ("NONE", "pause", "UNKNOWN"),
        ("FULL", "done", ""),
    ]
    notes = {one.name: one.note for one in shown.gauges}
    assert notes["FALLING"] == "runs dry in 7 min at this rate; 1,200 every 60 s"
    assert notes["EMPTY"].startswith("is dry")
    assert notes["FULL"] == "1,200 every 60 s"
    assert shown.note == "category A, checked 60 s ago"


def test_a_full_bucket_and_a_small_dip_have_no_forecast():
    states = merged(readings("FULL", 1000, 700, 1000), readings("DIP", 1000, 1000, 999))
    assert {one.note for one in gauges_of(states, NOON).gauges} == {"1,200 every 60 s"}


def test_a_policy_that_the_directory_names_no_more_is_left_out():
    states = merged(readings("OLD", 5, end=NOON - timedelta(hours=1)), readings("NEW", 5))
    assert [one.name for one in gauges_of(states, NOON).gauges] == ["NEW"]


def test_a_long_history_is_thinned_and_no_dip_is_lost():
    tokens = [1000] * 288
    tokens[100] = 3
    [gauge] = gauges_of(readings("A", *tokens), NOON).gauges
    assert len(gauge.history) <= 60
    assert 3 in gauge.history


def test_times_are_spoken_in_one_unit():
    assert [spoken(one) for one in (0, 59, 60, 120, 3600, 7200, 86_400, 400_000)] == [
        "0 s", "59 s", "60 s", "2 min", "1 h", "2 h", "1 d", "5 d",
    ]  # fmt: skip


async def test_the_page_shows_what_the_monitor_stored(tmp_path):
    database = SqliteDatabase(tmp_path / "pixdict.db")
    tables = MonitorTables(database)
    async with batuta.connect("memory://") as client:
        app = Starlette()
        app.mount("/", dashboard(client, pages=[dict_page(tables)]))
        empty = (await Web(app).get("/api/v1/pages/dict")).json
        assert empty["gauges"][0]["gauges"] == []
        assert "nothing yet" in empty["gauges"][0]["note"]
        now = datetime.now(UTC)
        states = [state_of(policy("KEYS_CHECK", 5, 70), now)]
        await tables.add_states(states, "a")
        for alert in analyze(states, now).alerts:
            await tables.add_alert(alert, "a")
        shown = (await Web(app).get("/api/v1/pages/dict")).json
        assert shown["gauges"][0]["gauges"][0]["name"] == "KEYS_CHECK"
        assert [table["title"] for table in shown["tables"]] == ["Alerts", "Breaker towards the directory"]
        assert shown["tables"][0]["rows"][0][1:3] == ["CRITICAL", "KEYS_CHECK"]
    await database.close()
