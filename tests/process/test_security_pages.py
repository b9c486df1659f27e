"""What is served over HTTP (RELIABILITY §8, web console): the demo's pages as markup, and the metrics' answers.

The headless browser is in demo/test_page_browser, hosts and origins of the page in demo/test_page_http. Here each value
that a page shows is hostile at once, and the markup around it must be that of a page whose values are harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from html.parser import HTMLParser
from typing import Any

import pytest

from asr_demo.page.desk import PAGE_MAX, Shown
from asr_demo.page.markup import live_page, shelf_page
from asr_demo.page.streaming import as_json
from tests.demo.page_reader import Reading
from tests.process.supervised import Supervised, program

HOSTILE = (
    "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", '" onmouseover=alert(1) x="', "<!--", "]]>",
    "' onfocus=alert(1) autofocus '", "</title></head><body onload=alert(1)>", "--><b>", "javascript:alert(1)",
    "&lt;script&gt;", "$title $body ${state} $$", "\x00<b>\x1b[2J", "<svg/onload=alert(1)>", "</details></div><h1>",
)  # fmt: skip
FOREIGN = ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1", "", "127.0.0.1@evil.example")


class Skeleton(HTMLParser):
    """The markup of a page without its text: tags in their order, with the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[object] = []
        self.text = ""
        self.places: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, [name for name, _ in attrs]))
        self.places += [value or "" for name, value in attrs if name in ("href", "src", "action", "formaction")]

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        self.tags.append("comment")

    def handle_decl(self, decl: str) -> None:
        self.tags.append(decl)

    def unknown_decl(self, data: str) -> None:
        self.tags.append("declaration")


def shown(text: str, **fixed: Any) -> Shown:
    """Every field that is text is `text`."""
    fields = dict.fromkeys(Shown.__struct_fields__, text)
    return Shown(**(fields | fixed))


@pytest.mark.case("A86")
@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("status", [None, "completed", "failed", "canceled"])
def test_no_value_of_a_detail_page_is_markup(text: str, status: str | None) -> None:
    fixed = {} if status is None else {"status": status}
    page, plain = Skeleton(live_page(shown(text, **fixed))), Skeleton(live_page(shown("plain", **fixed)))

    assert page.tags == plain.tags
    assert page.text.count(text) >= plain.text.count("plain") >= 4, "all of it is there, as text"
    assert all(place.startswith("/") for place in page.places)


@pytest.mark.case("A86")
@pytest.mark.parametrize("text", HOSTILE)
def test_no_value_of_the_list_is_markup(text: str) -> None:
    page, plain = (Skeleton(shelf_page([shown(value)] * PAGE_MAX)) for value in (text, "plain"))

    assert page.tags == plain.tags
    assert page.text.count(text) == 3 * PAGE_MAX
    assert all(place.startswith("/") for place in page.places)


@pytest.mark.case("A86")
@pytest.mark.parametrize("text", HOSTILE)
def test_json_holds_no_character_that_begins_markup(text: str) -> None:
    """Should anything ever take it for a page."""
    assert b"<" not in as_json(shown(text))


@pytest.fixture
def port(supervise: Callable[..., Supervised]) -> Iterator[int]:
    """Of the metrics of a small tree."""
    tree = supervise(program(), metrics=0)
    tree.wait_running()
    yield int(str(tree.child("metrics")["url"]).rpartition(":")[2])


@pytest.mark.fault
def test_every_answer_of_the_metrics_is_guarded_and_nothing_but_get_is_answered(port: int) -> None:
    """Also those that the framework makes by itself: not found, not allowed, refused."""
    paths = ("/metrics", "/livez", "/readyz", "/nothing", "/metrics/../livez", "/%2e%2e/%2e%2e/etc/passwd", "/<b>")
    seen: dict[tuple[str, str], int] = {}
    for path in paths:
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            with closing(Reading(port, path, method=method)) as reading:
                headers = {name.lower(): value for name, value in reading.answer.getheaders()}
                text = reading.text()
                seen[path, method] = reading.status
            assert headers["x-content-type-options"] == "nosniff", (path, method)
            assert headers["content-security-policy"].startswith("default-src 'none'"), (path, method)
            assert headers["cache-control"] == "no-store", (path, method)
            assert not {"server", "access-control-allow-origin"} & headers.keys(), (path, method)
            assert "html" not in headers.get("content-type", ""), (path, method)
            assert path not in text or path in ("/metrics", "/livez", "/readyz"), "nothing is repeated"
    for host in FOREIGN:
        for path in paths[:4]:
            with closing(Reading(port, path, Host=host)) as reading:
                assert (reading.status, reading.text()) == (403, "Host: must be a loopback name\n")
                assert reading.answer.getheader("X-Content-Type-Options") == "nosniff"
    assert {status for (path, method), status in seen.items() if method not in ("GET", "HEAD")} <= {404, 405}
    assert {path for (path, method), status in seen.items() if method == "GET" and status == 200} <= set(paths[:3])
