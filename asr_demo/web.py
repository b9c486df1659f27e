"""The second flow (e2e-web): a page is fetched, summarised and verified, by the same kernel and into the same notes.

The page's text is kept in the note before the fetch is over: whoever comes after a crash finds it there and does not
ask the other side again.
"""

from __future__ import annotations

import http.client
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlsplit

import msgspec

from asr_demo.flow import NotePorts, current_note
from kernel import Context, NonRetryable

STEPS = ("fetch", "generate", "finalize")
PAGE_BYTES_MAX = 1024 * 1024
FETCH_TIMEOUT_S = 10.0
_BLOCKS = frozenset(
    {"p", "div", "li", "h1", "h2", "h3", "h4", "h5", "h6", "br", "tr", "body", "section", "article", "blockquote"}
)
_UNSEEN = frozenset({"script", "style", "noscript", "template", "title"})

_CONNECTIONS: dict[str, type[http.client.HTTPConnection]] = {
    "http": http.client.HTTPConnection,
    "https": http.client.HTTPSConnection,
}


class WebInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`url` is an http or https address; the page itself is business data."""

    tenant_id: str
    object_id: str
    fencing_token: str
    url: str


class Fetched(msgspec.Struct, frozen=True):
    """Output of `fetch`."""

    characters: int
    sentences: int


class PageUnavailable(Exception):
    """No page now: no connection, too slow, or a 5xx status. Another attempt may well get it."""


def fetch(ctx: Context) -> Fetched:
    """Take the page's text into the note of this round, once."""
    note = current_note(ctx)
    if note.transcript is None:
        page: WebInput = ctx.input
        sentences = sentences_of(get(page.url, min(FETCH_TIMEOUT_S, max(0.1, ctx.remaining_s()))))
        if not sentences:
            raise NonRetryable(f"{page.url}: the page holds no text")
        ports: NotePorts = ctx.ports
        if not ports.notes.save_transcript(page.object_id, page.fencing_token, " ".join(sentences), sentences):
            raise NonRetryable(f"note {page.object_id} has left round {page.fencing_token}")
        return Fetched(sum(map(len, sentences)), len(sentences))
    return Fetched(len(note.transcript), len(note.segments))


def get(url: str, timeout_s: float) -> str:
    """The text of the page at `url`. Raises PageUnavailable, or NonRetryable when asking again can not help.

    Redirects are not followed: the input names the page, not whoever answers for it.
    """
    connection, path = _address(url, timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(PAGE_BYTES_MAX + 1)
    except http.client.InvalidURL:
        raise NonRetryable(f"url: {url!r} is no http or https address") from None
    except (OSError, http.client.HTTPException) as error:
        raise PageUnavailable(f"{url}: {type(error).__name__}: {error}") from None
    finally:
        connection.close()
    if response.status >= http.client.INTERNAL_SERVER_ERROR:
        raise PageUnavailable(f"{url}: status {response.status}")
    if response.status != http.client.OK:
        raise NonRetryable(f"{url}: status {response.status}")
    if len(body) > PAGE_BYTES_MAX:
        raise NonRetryable(f"{url}: the page is larger than {PAGE_BYTES_MAX} bytes")
    try:
        return body.decode(response.headers.get_content_charset() or "utf-8", "replace")
    except LookupError:  # a charset that nobody knows
        return body.decode("utf-8", "replace")


def _address(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection that is not open yet, and the path to ask it for."""
    try:
        address = urlsplit(url)
        if address.username is not None:
            raise NonRetryable("url: names a user or a password, which would stand in every record")
        if not address.hostname:
            raise ValueError
        make = _CONNECTIONS[address.scheme]
        connection = make(address.hostname, address.port, timeout=timeout_s)
    except (KeyError, ValueError, http.client.InvalidURL):
        raise NonRetryable(f"url: {url!r} is no http or https address") from None
    return connection, (address.path or "/") + (f"?{address.query}" if address.query else "")


def sentences_of(page: str) -> tuple[str, ...]:
    """What a reader sees of an HTML page, sentence by sentence; scripts, styles and tags are left out."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    found: list[str] = []
    for block in "".join(reader.parts).splitlines():
        line = " ".join(block.split())
        for end in (". ", "! ", "? "):
            line = line.replace(end, f"{end.strip()}\n")
        found += [sentence for sentence in line.splitlines() if any(map(str.isalnum, sentence))]
    return tuple(found)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._unseen += tag in _UNSEEN
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._unseen = max(0, self._unseen - (tag in _UNSEEN))
        if tag in _BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.parts.append(data)
