"""An operator works with the dashboard, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.extra.dashboard.conftest import OpenPage
from tests.extra.dashboard.site import APP, Site

pytestmark = [pytest.mark.extra, pytest.mark.timeout(180)]


# covers B-13
def test_a_run_is_started_watched_live_and_signalled_from_forms(site: Site, open_page: OpenPage, expect: Any) -> None:
    page = open_page(site, "/runs")
    page.get_by_role("button", name="Start a run").first.click()
    dialog = page.locator("dialog")
    dialog.locator("select[name=workflow]").select_option(label="checkout")
    dialog.locator("input[name=order]").fill("order-live")  # fields made from the types of the arguments
    dialog.locator("input[name=cents]").fill("1999")
    dialog.locator("input[name=id]").fill("order-live")
    dialog.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]+"))
    page.get_by_text("It takes the signal approve").wait_for()  # it got there by itself: nobody loaded the page again
    expect(page.get_by_role("button", name="charge", exact=False).first).to_be_visible()
    page.locator(".acts summary").click()
    page.get_by_role("button", name="Update…").click()
    expect(dialog.locator("input[name=message-name]")).to_have_value("change_address")
    dialog.locator("input[name=street]").fill("Rua A")
    dialog.locator("input[name=number]").fill("7")
    dialog.get_by_role("button", name="Send the update").click()
    dialog.get_by_text("order-live goes to Rua A 7").wait_for()
    dialog.get_by_role("button", name="Close").last.click()
    page.get_by_role("button", name="Signal…").click()
    expect(dialog.locator("input[name=message-name]")).to_have_value("approve")
    dialog.locator("input[name=approved]").check()
    dialog.locator("select[name=reason]").select_option("fraud")
    dialog.get_by_role("button", name="Give a value").click()
    dialog.get_by_role("button", name="Add").click()
    dialog.locator("fieldset input").last.fill("looked at it twice")
    dialog.get_by_role("button", name="Send the signal").click()
    page.locator("h1 .chip.done").wait_for()
    page.get_by_role("link", name="Input and result").click()
    page.get_by_text("charged 1999, approved: fraud").wait_for()


def test_a_job_is_enqueued_from_a_form(site: Site, open_page: OpenPage) -> None:
    page = open_page(site, "/runs")
    page.get_by_role("button", name="Start a run").first.click()
    page.locator("dialog select[name=workflow]").select_option(label="mail · job")
    page.locator("dialog input[name=to]").fill("ann@example.com")
    page.locator("dialog").get_by_role("button", name="Start", exact=True).click()
    page.locator("h1 .chip.done").wait_for()


def test_a_message_that_no_worker_knows_is_sent_as_json(tmp_path: Path, open_page: OpenPage) -> None:
    with Site(tmp_path) as site:
        site.serve("server")
        run_id = site.start("unheard_of", id="alone")
        page = open_page(site, f"/runs/{run_id}")
        page.get_by_role("button", name="Signal…").click()
        page.locator("dialog input[name=message-name]").fill("approve")
        page.locator("dialog textarea").fill('{"approved": true}')
        page.get_by_role("button", name="Send the signal").click()
        page.get_by_text("Sent the signal approve").wait_for()
        page.close()  # before the server, which would cut its stream


def test_the_tree_shows_parent_children_and_forks(site: Site, open_page: OpenPage) -> None:
    run_id = site.start("household", 3, id="home")
    site.wait_for_state(run_id, "completed")
    page = open_page(site, f"/runs/{run_id}?tab=tree")
    page.get_by_role("link", name="member-2").click()
    page.locator("h1").filter(has_text="member-2").wait_for()
    page.get_by_role("link", name="Tree").click()
    page.get_by_role("link", name="home", exact=True).click()
    page.locator("h1").filter(has_text="home").wait_for()
    forked = site.ask(f"runs/{run_id}/fork", {"id": "home-again", "at": 0})
    page.goto(f"{site.address}/runs/{run_id}?tab=tree")
    page.get_by_role("link", name="home-again").click()
    page.wait_for_url(f"**/runs/{forked['run_id']}")


def test_retention_is_set_and_pruned_after_a_count(site: Site, open_page: OpenPage, expect: Any) -> None:
    page = open_page(site, "/retention")
    page.get_by_role("button", name="Add a rule").click()
    page.locator("dialog input[name=workflow]").fill("mail")
    page.locator("dialog input[name=keep]").fill("2w")
    page.locator("dialog").get_by_role("button", name="Save").click()
    row = page.locator("tr").filter(has_text="mail")
    expect(row).to_contain_text("14 d")
    page.get_by_role("button", name="Prune now…").click()
    expect(page.get_by_text("No run is older than the rules allow.")).to_be_visible()  # it has its text before it opens
    page.keyboard.press("Escape")
    row.get_by_role("button", name="Delete").click()
    page.locator("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Closed runs are kept for ever")).to_be_visible()


def test_a_run_is_forked_with_an_edited_value(site: Site, open_page: OpenPage) -> None:
    run_id = site.start("checkout", "order-fork", 500, id="order-fork")
    page = open_page(site, f"/runs/{run_id}")
    page.get_by_role("button", name="2 reserve").or_(page.get_by_role("button", name="reserve")).first.click()
    page.get_by_role("button", name="Fork from here…").click()
    dialog = page.locator("dialog")
    dialog.get_by_text("Give it this result").click()
    dialog.locator("textarea").fill('"reserved by hand"')
    dialog.locator("input[name=fork-id]").fill("order-forked")
    dialog.get_by_role("button", name="Fork", exact=True).click()
    page.wait_for_url(lambda url: run_id not in url)
    page.get_by_role("link", name="Compare").click()
    page.get_by_text("reserved by hand").first.wait_for()


def test_a_group_of_dead_letters_is_reprocessed(site: Site, open_page: OpenPage, expect: Any) -> None:
    for number in range(3):
        job = site.ask("jobs", {"name": "mail", "input": [f"nobody {number}"]})
        site.wait_for_state(job["run_id"], "failed")
    page = open_page(site, "/dead-letters")
    group = page.locator(".letter-group").filter(has_text="no such address")
    expect(group.locator(".letter-count")).to_have_text("3")
    group.get_by_role("button", name="Reprocess…").click()
    page.locator("dialog").get_by_role("button", name="Reprocess 3").click()
    expect(page.locator("dialog .chip.done")).to_be_visible()
    expect(page.locator("dialog h2")).to_have_text("Reprocess: 3 of 3")


def test_a_queue_is_paused_and_its_limit_is_edited_in_place(site: Site, open_page: OpenPage, expect: Any) -> None:
    page = open_page(site, "/queues")
    row = page.locator("tr").filter(has_text="default")
    row.get_by_role("button", name=re.compile("^concurrency of default")).click()
    page.keyboard.type("40")
    page.keyboard.press("Enter")
    expect(row.get_by_role("button", name=re.compile("^concurrency of default: 40"))).to_be_visible()
    row.get_by_role("button", name="Pause").click()
    page.locator("dialog input[name=reason]").fill("the bank is down")
    page.locator("dialog").get_by_role("button", name="Pause").click()
    expect(row.get_by_text("paused", exact=True)).to_be_visible()
    expect(row.get_by_text("the bank is down")).to_be_visible()
    row.get_by_role("button", name="Resume").click()
    page.locator("dialog").get_by_role("button", name="Resume").click()
    expect(row.get_by_text("paused", exact=True)).to_be_hidden()
    page.goto(site.address + "/audit")
    page.get_by_text("the bank is down").wait_for()


def test_a_queue_tells_which_worker_holds_which_run(site: Site, open_page: OpenPage, expect: Any) -> None:
    run_id = site.start("slow", 600, id="held")
    page = open_page(site, "/queues")
    page.locator("tr").filter(has_text="default").get_by_title("who holds what").click()
    worker = site.ask("workers")["workers"][0]["worker_id"]
    expect(
        page.locator("section").filter(has_text="Running from default").locator("tr", has_text="held")
    ).to_contain_text(worker)
    site.ask(f"runs/{run_id}/terminate", {"reason": "it was seen"})
    expect(page.get_by_text("Nothing runs from it now.")).to_be_visible()


def test_all_that_match_are_cancelled_after_a_count(site: Site, open_page: OpenPage, expect: Any) -> None:
    runs = [site.start("slow", 600, tags={"batch": "7"}) for _ in range(4)]
    page = open_page(site, "/runs?tag=batch%3D7")
    page.get_by_label("Select all that are shown").check()
    page.get_by_role("button", name="Cancel").click()
    dialog = page.locator("dialog")
    dialog.locator("input[name=reason]").fill("a wrong batch")
    dialog.get_by_role("button", name="Cancel 4").click()
    for run in runs:
        site.wait_for_state(run, "cancelled")
    expect(page.locator(".virtual-rows .chip.stop")).to_have_count(4)  # in place, without a reload


def test_the_keyboard_alone_is_enough(site: Site, open_page: OpenPage, expect: Any) -> None:
    site.start("checkout", "order-keys", 1, id="order-keys")
    page = open_page(site, "/")
    page.locator("main h1").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/runs")
    page.locator(".virtual-rows .run-row").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/runs/.+"))
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Find a run")).to_be_focused()
    page.keyboard.type("order-keys")
    expect(page.get_by_role("option").first).to_contain_text("order-keys")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("order-keys")
    page.keyboard.press("?")
    expect(page.locator("dialog .keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def test_dark_and_light_are_remembered(site: Site, open_page: OpenPage) -> None:
    page = open_page(site, "/")
    page.locator("html[data-theme=light]").wait_for()
    page.get_by_role("button", name="Switch to dark").click()
    page.locator("html[data-theme=dark]").wait_for()
    page.reload()
    page.locator("html[data-theme=dark]").wait_for()


def test_a_run_that_another_worker_takes_over_goes_on_before_the_eyes(
    tmp_path: Path, open_page: OpenPage, expect: Any
) -> None:
    with Site(tmp_path) as site:
        site.serve("server")
        first = site.begin("worker", "--app", APP)
        run_id = site.start("slow", 3.0)
        page = open_page(site, f"/runs/{run_id}")
        page.locator(".seg.running").first.wait_for()
        first.kill()
        site.begin("worker", "--app", APP)
        page.locator("h1 .chip.done").wait_for()
        step = page.locator(".virtual-rows .t-row").filter(has_text="take_long")
        expect(step.locator(".seg.queued")).to_be_visible()  # until the other worker took it over
        expect(step.locator(".seg.running")).to_be_visible()
        page.close()


def test_what_is_redacted_is_revealed_for_a_reason_that_is_audited(
    tmp_path: Path, open_page: OpenPage, expect: Any
) -> None:
    with Site(tmp_path) as site:
        site.serve("dev", "--app", APP, "--no-reload")
        site.run("redaction", "on")
        run_id = site.start("checkout", "ann@example.com", 5, id="secret")
        page = open_page(site, f"/runs/{run_id}?tab=data")
        expect(page.locator("main")).to_contain_text("Input")
        expect(page.locator("main")).not_to_contain_text("ann@example.com")
        page.locator(".acts summary").click()
        page.get_by_role("button", name="Reveal what is redacted…").click()
        page.locator("dialog input[name=reason]").fill("the customer asked")
        page.locator("dialog").get_by_role("button", name="Reveal").click()
        page.get_by_text("ann@example.com").first.wait_for()
        page.goto(site.address + "/audit")
        expect(page.locator("tr").filter(has_text="the customer asked")).to_contain_text("reveal")
        page.close()


def test_a_page_of_an_application_is_drawn_by_the_dashboard_that_is_mounted_in_it(
    tmp_path: Path, open_page: OpenPage, expect: Any
) -> None:
    with Site(tmp_path) as site:
        site.serve_mounted("tests.extra.dashboard.mounted:app", "/tools/batuta")
        site.start("pay", id="p-1", tags={"partner": "<b>acme"})
        page = open_page(site, "/")
        page.get_by_role("link", name="Suppliers").click()
        row = page.locator("tr").filter(has_text="p-1")
        expect(row).to_contain_text("<b>acme")
        expect(page.get_by_text("A partner opens one by mail.")).to_be_visible()
        site.start("pay", id="p-2", tags={"partner": "bolt"})
        page.get_by_role("link", name="p-2").click()  # it came by itself
        page.wait_for_url(re.compile("/tools/batuta/runs/p-2$"))
        expect(page.locator("h1")).to_contain_text("p-2")
        page.close()


def test_a_page_of_an_application_shows_gauges_and_its_actions_are_forms(
    tmp_path: Path, open_page: OpenPage, expect: Any
) -> None:
    with Site(tmp_path) as site:
        site.serve_mounted("tests.extra.dashboard.mounted:app", "/tools/batuta")
        page = open_page(site, "/money")
        gauge = page.locator(".gauge")
        expect(gauge).to_contain_text("<b>Float")
        expect(gauge).to_contain_text("20 of 100")
        expect(gauge.get_by_role("meter")).to_have_attribute("aria-valuenow", "20")
        expect(gauge).to_contain_text("LOW")
        page.get_by_role("button", name="Top up").click()
        page.locator("dialog input[name=cents]").fill("35")
        page.locator("dialog").get_by_role("button", name="Top up").click()
        expect(page.get_by_text("35 cents are there.")).to_be_visible()
        expect(gauge).to_contain_text("55 of 100")
        page.close()


def test_signing_in_and_out(tmp_path: Path, open_page: OpenPage, expect: Any) -> None:
    with Site(tmp_path) as site:
        key = re.search(r"batuta_live_\S+", site.run("api-keys", "create", "ada", "--scope", "operator"))
        assert key is not None
        site.serve("server")
        page = open_page(site, "/queues")
        page.get_by_label("API key").fill(key.group())
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Queues", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="API keys")).to_have_count(0)  # an operator makes none
        page.get_by_role("button", name=re.compile("Sign out")).click()
        expect(page.get_by_label("API key")).to_be_visible()
