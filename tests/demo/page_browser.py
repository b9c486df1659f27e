"""Chromium without a screen, driven by Playwright: Debian's program, never one that Playwright brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.support.programs import PROGRAMS
from tests.support.wait import wait_until

LOAD_MS = 60_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that ends with this block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=PROGRAMS["chromium"].path(),
            # Its sandbox needs rights that root in a container has not; what it loads is ours.
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
        )
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One page of the demo in one tab. `url` is that of the site."""

    def __init__(self, context: BrowserContext, url: str, object_id: str = "note-1") -> None:
        self.page: Page = context.new_page()
        self.page.set_default_timeout(LOAD_MS)
        self.requests: list[str] = []
        self.alerts: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._dismissed)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(f"{url}/live/{object_id}", wait_until="load")

    def _dismissed(self, dialog: Any) -> None:
        self.alerts.append(dialog.message)
        dialog.dismiss()

    def _text(self, selector: str) -> str:
        return self.page.locator(selector).text_content() or ""

    @property
    def text(self) -> str:
        return self._text("#text")

    @property
    def state(self) -> str:
        return self.page.locator("#state").get_attribute("data-state") or ""

    @property
    def words(self) -> str:
        return self._text("#state")

    @property
    def note(self) -> str:
        """What the page says about the sequence of frames; empty while it says nothing."""
        note = self.page.locator("#note")
        return (note.text_content() or "") if note.is_visible() else ""

    @property
    def steps(self) -> list[str]:
        """The list of the steps and how each stands."""
        return self.page.locator("#steps li").all_text_contents()

    def shows(self, text: str) -> None:
        """Wait until exactly this is shown."""
        wait_until(lambda: self.text == text, f"the page shows {text!r}")

    def becomes(self, state: str) -> None:
        wait_until(lambda: self.state == state, f"the page is {state}")

    def reconnects(self, streams: int) -> None:
        """Wait until it has lost its connection, or has asked for a stream beyond so many already: where somebody else
        brings the server back, nobody may be quick enough to see it in between."""
        wait_until(lambda: self.state == "reconnecting" or len(self.streams()) > streams, "the page reconnects")

    def streams(self) -> list[str]:
        return [url for url in self.requests if "/stream/" in url]
