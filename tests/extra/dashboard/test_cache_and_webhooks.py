"""The pages Cache and Webhooks, with a real Valkey and a receiver that is away, in a real browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batuta.cache import Cache, Entity, RedisCache, RedisOptions
from batuta.testing.servers import free_ports
from batuta.testing.valkey import ValkeyServer
from tests.extra.dashboard.conftest import OpenPage
from tests.extra.dashboard.site import APP, Site

pytestmark = [pytest.mark.extra, pytest.mark.timeout(180)]


async def look_things_up(url: str) -> None:
    """Two hits, and a miss before."""
    async with Cache(await RedisCache.connect(url, RedisOptions(min_idle=0)), tell_every=0.001) as cache:
        entries = Entity(cache, "shop:item:id:{item_id}", str, lifetime=60)
        await entries.get(item_id=1)
        await entries.put("tea", item_id=1)
        while not await cache.uses():
            await entries.get(item_id=1)


@pytest.fixture(scope="module")
def partner_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ValkeyServer() as valkey, pytest.MonkeyPatch.context() as patch:
        asyncio.run(look_things_up(valkey.url))
        patch.setenv("BATUTA_REDIS_URL", valkey.url)
        patch.setenv("BATUTA_WEBHOOK_ALLOW", "127.0.0.1")
        with Site(Path(tmp_path_factory.mktemp("partners"))) as made:
            made.serve("dev", APP, "--no-reload")
            yield made


def test_hits_are_shown_by_entity(partner_site: Site, open_page: OpenPage, expect: Any) -> None:
    page = open_page(partner_site, "/cache")
    row = page.locator("section").filter(has=page.get_by_role("heading", name="Hits by entity")).locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("shop:item:id")
    expect(row).to_contain_text("%")


def test_a_delivery_that_waits_is_tried_now(partner_site: Site, open_page: OpenPage, expect: Any) -> None:
    port = next(free_ports())
    partner_site.ask("webhooks", {"url": f"http://127.0.0.1:{port}/hook", "types": ["order.paid"]})
    partner_site.ask("webhooks/send", {"type": "order.paid", "data": {"id": 1}, "id": "evt-1"})
    page = open_page(partner_site, "/webhooks")
    row = page.locator("tr").filter(has_text="evt-1")
    row.get_by_role("button", name="Attempts").click()
    expect(page.locator("ol li")).to_have_count(1)
    row.get_by_role("button", name="Try now").click()
    expect(page.get_by_text("It is tried now.")).to_be_visible()
    expect(page.locator("ol li")).to_have_count(2)

    row.get_by_role("link", name="order.paid").click()
    page.get_by_role("button", name="Try now").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Reason").fill("the shop is back")
    dialog.get_by_role("button", name="Try now").click()
    expect(page.get_by_text(re.compile("has failed 3 times"))).to_be_visible()
    reasons = [row["reason"] for row in partner_site.ask("audit?verb=retry")["rows"]]
    assert "the shop is back" in reasons
