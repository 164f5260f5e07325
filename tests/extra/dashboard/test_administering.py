"""Schedules, quotas and API keys are made, changed and deleted in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.extra.dashboard.conftest import OpenPage
from tests.extra.dashboard.site import Site

pytestmark = [pytest.mark.extra, pytest.mark.timeout(180)]


# covers B-13
def test_a_schedule_is_made_triggered_paused_backfilled_and_deleted(
    site: Site, open_page: OpenPage, expect: Any
) -> None:
    page = open_page(site, "/schedules")
    dialog = page.locator("dialog")
    page.get_by_role("button", name="New schedule").click()
    dialog.get_by_label("Name of the schedule").fill("hourly-mail")
    dialog.get_by_label("Workflow or job that it starts").fill("mail")
    dialog.get_by_label("it is a job").check()
    dialog.get_by_label("every so many seconds").check()
    dialog.get_by_label("Seconds", exact=True).fill("3600")
    dialog.locator("textarea").fill('["ann@example.com"]')
    dialog.get_by_role("button", name="Make it").click()
    row = page.locator("tr").filter(has_text="hourly-mail")
    expect(row).to_contain_text("mail job")
    expect(row).to_contain_text(re.compile(r"in \d+"))

    row.get_by_role("button", name="Trigger").click()
    dialog.get_by_role("button", name="Trigger").click()
    page.get_by_role("link", name="Open the run").click()
    page.locator("h1 .chip.done").wait_for()
    page.go_back()

    row.get_by_role("button", name="Pause").click()
    dialog.get_by_label("Reason").fill("the mail server moves")
    dialog.get_by_role("button", name="Pause").click()
    expect(row.get_by_text("paused", exact=True).first).to_be_visible()
    row.get_by_role("button", name="Resume").click()
    dialog.get_by_role("button", name="Resume").click()
    expect(row.get_by_text("paused", exact=True)).to_have_count(0)

    row.locator("summary").click()
    row.get_by_role("button", name="Backfill…").click()
    dialog.get_by_label("Since").fill("3h")
    dialog.get_by_role("button", name="Backfill").click()
    expect(page.get_by_text(re.compile("Began [23] runs of hourly-mail"))).to_be_visible()
    verbs = {row["verb"] for row in site.ask("audit?target=hourly-mail")["rows"]}
    assert verbs == {f"{verb} schedule" for verb in ("put", "trigger", "pause", "resume", "backfill")}

    row.locator("summary").click()
    row.get_by_role("button", name="Delete…").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.locator("tr").filter(has_text="hourly-mail")).to_have_count(0)


def test_a_wrong_schedule_says_why_and_keeps_what_was_typed(site: Site, open_page: OpenPage, expect: Any) -> None:
    page = open_page(site, "/schedules", quiet=(400,))
    page.get_by_role("button", name="New schedule").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Name of the schedule").fill("wrong")
    dialog.get_by_label("Workflow or job that it starts").fill("checkout")
    dialog.get_by_role("textbox", name="Cron").fill("61 * * * *")
    dialog.get_by_role("button", name="Make it").click()
    expect(dialog.get_by_text("61")).to_be_visible()
    expect(dialog.get_by_label("Name of the schedule")).to_have_value("wrong")
    dialog.get_by_role("button", name="Back").click()
    expect(page.locator("tr").filter(has_text="wrong")).to_have_count(0)


def test_a_quota_is_set_shows_its_use_and_is_changed_and_deleted(site: Site, open_page: OpenPage, expect: Any) -> None:
    page = open_page(site, "/quotas")
    dialog = page.locator("dialog")
    page.get_by_role("button", name="Set a quota").click()
    dialog.get_by_label("Limit").fill("5000")
    dialog.get_by_role("button", name="Set", exact=True).click()
    row = page.locator("tr").filter(has_text="open_runs")
    expect(row).to_contain_text("5,000")
    expect(row).to_contain_text("%")
    row.get_by_role("button", name="Change").click()
    expect(dialog.get_by_label("Limit")).to_have_value("5000")
    dialog.get_by_label("Limit").fill("6000")
    dialog.get_by_role("button", name="Set", exact=True).click()
    expect(row).to_contain_text("6,000")
    row.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("No quotas")).to_be_visible()


def test_who_may_see_all_namespaces_chooses_the_one_that_is_shown(site: Site, open_page: OpenPage, expect: Any) -> None:
    site.ask("runs?namespace=acme", {"name": "checkout", "input": ["lamp", 1], "id": "of-acme"})
    site.start("checkout", "lamp", 1, id="of-default")
    page = open_page(site, "/")
    page.get_by_role("button", name="Namespace default: choose another").click()
    page.locator("dialog").get_by_role("button", name="acme").click()
    page.get_by_role("link", name="Runs", exact=False).first.click()
    expect(page.get_by_role("link", name="of-acme")).to_be_visible()
    expect(page.get_by_role("link", name="of-default")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("link", name="of-acme")).to_be_visible()
    expect(page.get_by_role("status").get_by_text("live")).to_be_visible()  # the stream is of that namespace, too


def test_the_first_key_turns_sign_in_on_and_keys_are_rotated_and_revoked(
    tmp_path: Path, open_page: OpenPage, expect: Any
) -> None:
    with Site(tmp_path) as site:
        site.serve("server")
        page = open_page(site, "/api-keys", quiet=(401,))
        dialog = page.locator("dialog")
        page.get_by_role("button", name="New key").click()
        expect(dialog.get_by_label("Scope")).to_have_value("admin")  # the first one: another could make no more keys
        dialog.get_by_label("Name").fill("root")
        with page.expect_response(lambda answer: answer.status == 401):  # this session is over, and the key stays
            dialog.get_by_role("button", name="Make the key").click()
        key = dialog.locator("pre").inner_text().strip()
        assert key.startswith("batuta_live_")
        dialog.get_by_role("button", name="I have copied it").click()

        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        row = page.locator("tr").filter(has_text="root")
        expect(row).to_contain_text("admin")

        page.get_by_role("button", name="New key").click()
        dialog.get_by_label("Name").fill("ci")
        dialog.get_by_role("button", name="Make the key").click()
        dialog.get_by_role("button", name="I have copied it").click()
        row = page.locator("tr").filter(has_text="ci")
        expect(row).to_contain_text("viewer")
        row.get_by_role("button", name="Rotate").click()
        dialog.get_by_role("button", name="Rotate").click()
        expect(dialog.locator("pre")).to_contain_text("batuta_live_")
        dialog.get_by_role("button", name="I have copied it").click()
        rows = page.locator("tr").filter(has_text="ci")
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("replaced")  # the old one, which works for another hour
        rows.first.get_by_role("button", name="Revoke").click()
        dialog.get_by_role("button", name="Revoke").click()
        expect(page.get_by_text("revoked", exact=True).first).to_be_visible()
        page.close()


def test_the_menu_of_the_last_row_is_in_sight(site: Site, open_page: OpenPage, expect: Any) -> None:
    """The table, which scrolls, cut it off."""
    site.ask("schedules", {"id": "only", "name": "checkout", "input": ["a", 1], "every": 3600})
    for width in (1440, 360):
        page = open_page(site, "/schedules", width=width)
        page.locator("summary", has_text="More").last.click()
        delete = page.get_by_role("button", name="Delete…").last
        expect(delete).to_be_in_viewport(ratio=1)
        top = "(one) => { const {x, y, width, height} = one.getBoundingClientRect(); "
        top += "return document.elementFromPoint(x + width / 2, y + height / 2) === one }"
        assert delete.evaluate(top)
