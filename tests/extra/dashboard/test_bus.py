"""The page Bus with many rows, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.extra.dashboard.conftest import OpenPage
from tests.extra.dashboard.mailing import PER_TOPIC, TOPICS
from tests.extra.dashboard.site import Site

pytestmark = [pytest.mark.extra, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def mail_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(Path(tmp_path_factory.mktemp("mail"))) as made:
        made.serve("dev", "--app", "tests.extra.dashboard.mailing:APP", "--no-reload")
        for number in range(120):
            made.ask("bus/messages", {"topic": "topic-00", "payload": number, "id": f"m-{number}", "key": "one key"})
        made.ask("bus/messages", {"topic": "topic-01", "payload": -1, "id": "bad"})
        yield made


def test_many_subscriptions_topics_and_messages_are_shown_and_one_is_deleted(
    mail_site: Site, open_page: OpenPage, expect: Any
) -> None:
    page = open_page(mail_site, "/bus")

    def part(heading: str) -> Any:
        return page.locator("section").filter(has=page.get_by_role("heading", name=heading))

    subscriptions, topics, failed = part("Subscriptions"), part("Topics"), part("Deliveries that failed")
    expect(subscriptions.locator("tbody tr")).to_have_count(TOPICS * PER_TOPIC)
    expect(topics.locator("tbody tr")).to_have_count(TOPICS)
    row = subscriptions.locator("tr").filter(has_text="taker-00-0")
    expect(row).to_contain_text("caught up")  # by itself, when all of them are delivered
    expect(subscriptions.locator("tr").filter(has_text="taker-01-1")).to_contain_text("1 failed")
    expect(failed.locator("tbody tr")).to_have_count(PER_TOPIC)
    expect(failed).to_contain_text("cannot take -1")

    expect(part("Last messages of topic-00").locator("tbody tr").first).to_contain_text("m-119")
    topics.get_by_role("button", name="topic-01").click()
    expect(part("Last messages of topic-01")).to_contain_text("bad")

    row.get_by_role("button", name="Delete").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Reason").fill("it moves elsewhere")
    dialog.get_by_role("button", name="Delete").click()
    expect(subscriptions.locator("tbody tr")).to_have_count(TOPICS * PER_TOPIC - 1)
    assert mail_site.ask("audit?verb=drop%20subscription")["rows"][0]["reason"] == "it moves elsewhere"


def test_many_rows_fit_a_phone(mail_site: Site, open_page: OpenPage, expect: Any) -> None:
    page = open_page(mail_site, "/bus", width=360)
    expect(page.get_by_text("taker-29-1")).to_be_visible()
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
