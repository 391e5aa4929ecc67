"""Visits to the page in a browser, and what a visitor should never see.

Screenshots go to the folder that ``REPRISE_SCREENSHOTS`` names, and nowhere without it.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, Request, expect

from tests.support.forking import address
from tests.support.running import RunningGateway

_WITNESS = """
window.told = [];
document.addEventListener("securitypolicyviolation", (event) => window.told.push(event.violatedDirective));
window.shifts = [];
new PerformanceObserver((list) => {
  for (const { sources, value } of list.getEntries()) {
    const name = ({ node }) => node?.id || node?.className || node?.parentElement?.outerHTML || "gone";
    window.shifts.push([value, ...sources.map(name)]);
  }
}).observe({ type: "layout-shift", buffered: true });
"""


class Visit:
    """A page of the gateway, and everything about it that a user should never see."""

    def __init__(self, page: Page, gateway: RunningGateway) -> None:
        self.page = page
        self.gateway = gateway
        self.errors: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._note)

    def _note(self, request: Request) -> None:
        self.asked.append(request.url)

    async def open(self, fragment: str = "") -> Page:
        """Go to the page and wait for its first figures."""
        await self.page.goto(address(self.gateway) + fragment)
        await expect(self.page.locator("#live")).to_have_attribute("data-level", "ok")
        return self.page

    async def open_fork(self, text: str) -> Page:
        """Go to the fork viewer of the first cohort whose line holds a text."""
        page = await self.open("#/forks")
        await page.locator("#cohorts a", has_text=text).first.click()
        await expect(page.locator("#detail h2")).to_be_focused()
        return page

    async def shoot(self, name: str) -> None:
        """Take a screenshot, where the environment names a folder for it."""
        folder = os.environ.get("REPRISE_SCREENSHOTS")
        if folder:
            await self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    async def check(self) -> None:
        """Nothing went wrong in it, and it talked to its gateway alone."""
        assert self.errors == []
        assert await self.page.evaluate("window.told") == []
        assert self.asked
        assert not [url for url in self.asked if not url.startswith(address(self.gateway))]


@asynccontextmanager
async def visiting(browser: Browser, gateway: RunningGateway, **context: Any) -> AsyncIterator[Visit]:
    made: BrowserContext = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
    try:
        page = await made.new_page()
        await page.add_init_script(_WITNESS)
        yield Visit(page, gateway)
    finally:
        await made.close()


async def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(40):
        await page.keyboard.press("Tab")
        if await page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    pytest.fail(f"no number of tabs leads to {selector}")
