"""A browser that notices errors and requests to other origins, and a site to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.extra.dashboard.site import APP, PATIENCE, Site

if TYPE_CHECKING:  # make test-extra installs it; other tests are collected without it
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

CHROMIUM = "/usr/bin/chromium"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(Path(tmp_path_factory.mktemp("site"))) as made:
        made.serve("dev", "--app", APP, "--no-reload")
        yield made


OpenPage = Callable[..., Any]
"""Opens an address of a site; a Page of Playwright."""


@pytest.fixture(scope="session")
def expect() -> Any:
    """Playwright's: it waits until what is expected is so."""
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=PATIENCE * 1000)
    return expected


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens an address in a fresh context. At the end: nothing was wrong, and nothing came from elsewhere."""
    troubles: list[str] = []
    contexts = []

    expected: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(words in message.text for words in expected):
            troubles.append(f"console: {message.text} ({message.location.get('url')})")

    def opened(
        site: Site, path: str = "/", *, width: int = 1440, dark: bool = False, quiet: tuple[int, ...] = ()
    ) -> Page:
        """`quiet`: answers of these statuses are part of the test; browsers write them to the console."""
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
        )
        contexts.append(context)
        expected.extend(f"responded with a status of {status}" for status in quiet)
        page = context.new_page()
        page.set_default_timeout(PATIENCE * 1000)

        def check_origin(request: Request) -> None:
            if not request.url.startswith(site.address):
                troubles.append(f"request to {request.url}")

        page.on("console", note)
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("request", check_origin)
        page.goto(site.address + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not troubles, troubles
