"""Every scenario of pixdict, start to end, and the pages of keys and claims, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pixdict.scenarios import SCENARIOS
from tests.extra.dashboard.conftest import OpenPage
from tests.extra.dashboard.site import Site

pytestmark = [pytest.mark.extra, pytest.mark.timeout(300)]

PAGES = ("/keys", "/claims", "/scenarios", "/dict", "/reconciliation", "/simulator")
OPEN_FOR, WAIT = "1", "1"
"""Seconds that the breaker is open, and that core waits."""


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """`pixdict dev`, with a Valkey of its own."""
    with Site(Path(tmp_path_factory.mktemp("pixdict"))) as made:
        made.serve_pixdict("--open-for", OPEN_FOR, "--wait", WAIT)
        yield made


def play(page: Any, expect: Any, scenario: Any) -> None:
    page.get_by_role("button", name="Play").click()
    dialog = page.locator("dialog")
    dialog.locator("select").select_option(scenario.name)
    dialog.get_by_role("button", name="Play").click()
    expect(page.get_by_text(f"{scenario.title}: proved")).to_be_visible(timeout=90_000)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_a_scenario_is_played_and_its_ledger_proves_what_should_happen(
    stand: Site, open_page: OpenPage, expect: Any, scenario: Any
) -> None:
    page = open_page(stand, "/scenarios")
    told = page.locator("tr").filter(has=page.get_by_role("cell", name=scenario.name, exact=True))
    expect(told).to_contain_text(scenario.should)
    expect(told).to_contain_text("not played yet")
    play(page, expect, scenario)
    expect(told).to_contain_text("proved")
    ledger = page.locator("section").filter(has=page.get_by_role("heading", name=f"Ledger: {scenario.title}"))
    lines = ledger.locator("tbody tr")
    assert lines.count() >= 7
    expect(lines.filter(has_text="NOT as expected")).to_have_count(0)
    expect(lines.filter(has_text="as expected")).to_have_count(lines.count())
    steps = page.locator("section").filter(has=page.get_by_role("heading", name=f"Steps: {scenario.title}"))
    assert steps.locator("tbody tr").count() >= 2


def test_a_run_of_a_scenario_leads_to_its_timeline(stand: Site, open_page: OpenPage, expect: Any) -> None:
    page = open_page(stand, "/scenarios")
    play(page, expect, next(one for one in SCENARIOS if one.name == "same-key-other-body"))
    runs = page.locator("section").filter(has=page.get_by_role("heading", name="Runs: "))
    link = runs.get_by_role("link").first
    expect(link).to_be_visible()
    link.click()
    expect(page.get_by_text("register").first).to_be_visible()


def test_the_page_of_keys_shows_what_scenarios_made_with_their_runs(
    stand: Site, open_page: OpenPage, expect: Any
) -> None:
    page = open_page(stand, "/keys")
    row = page.locator("tbody tr").filter(has_text="ACTIVE").first
    expect(row).to_contain_text("+5561")
    row.get_by_role("link").click()
    expect(page.get_by_text("create_entry").first).to_be_visible()


def test_a_claim_of_another_institution_is_shown_with_its_run(stand: Site, open_page: OpenPage, expect: Any) -> None:
    number = next(one["key_value"] for one in stand.ask("keys?status=ACTIVE")["keys"])
    page = open_page(stand, "/simulator")
    page.get_by_role("button", name="Others claim a key").click()
    dialog = page.locator("dialog")
    dialog.locator("input[name=key]").fill(number)
    dialog.get_by_role("button", name="Others claim a key").click()
    expect(page.get_by_text("is open: see the page Claims")).to_be_visible()
    page.get_by_role("link", name="Claims").click()
    row = page.locator("tbody tr").filter(has_text=number)
    expect(row).to_contain_text("WAITING_RESOLUTION")
    row.get_by_role("link").click()
    expect(page.get_by_text("acknowledge").first).to_be_visible()


def test_pages_of_pixdict_fit_360_pixels(stand: Site, open_page: OpenPage) -> None:
    page = open_page(stand, "/", width=360)
    too_wide = []
    for path in PAGES:
        page.goto(stand.address + path)
        page.locator("main").wait_for()
        page.locator(".loading").first.wait_for(state="detached")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            too_wide.append(path)
    assert not too_wide
