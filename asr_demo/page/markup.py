"""The pages as HTML. Every value is escaped in one place; none of them ever is markup (RELIABILITY §8)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template
from urllib.parse import quote

from asr_demo.page.desk import PAGE_MAX, Shown

SILENCE_MS = 4_000
"""How long a page that hears nothing believes in its connection: some of the server's pulses."""
AGAIN_S = 3
"""How often a browser without JavaScript looks again."""


class Html(str):
    """Text that is markup already, made here and nowhere else."""

    __slots__ = ()


_FRAME = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<link rel="stylesheet" href="/static/live.css">
$head</head>
$body
</html>
""")

_LIVE = Template("""<body data-stream="$stream" data-result="$result" data-round="$round"
 data-silence-ms="$silence"$over>
<p><a href="/">all summaries</a></p>
<h1>$object_id</h1>
<p><output id="state" data-state="$state">$words</output>
<button id="drop" type="button" hidden>drop my connection</button></p>
<ol id="steps" aria-label="steps"></ol>
<p id="note" role="status" hidden></p>
<div id="text" role="region" aria-label="summary">$summary</div>
<p id="error">$error</p>
$transcript<noscript><p>Without JavaScript this page shows the final result and looks for it every $again s.</p>
</noscript>
</body>""")

_TRANSCRIPT = Template("""<details><summary>transcript</summary><div class="said">$transcript</div></details>
""")

_SHELF = Template("""<body>
<h1>Summaries</h1>
<table>
<thead><tr><th>summary</th><th>state</th><th>round</th></tr></thead>
<tbody>
$rows</tbody>
</table>
<p>$more</p>
</body>""")

_ROW = Template("""<tr><td><a href="$href">$object_id</a></td><td>$status</td><td>$round</td></tr>
""")


def live_page(shown: Shown) -> str:
    """The page of one object: with what is there already, and what `live.js` needs to go on from it."""
    place = quote(shown.object_id, safe="")
    state, words = ("done", shown.status) if shown.ended else ("connecting", shown.status)
    transcript = "" if shown.transcript is None else _filled(_TRANSCRIPT, transcript=shown.transcript)
    body = _filled(
        _LIVE,
        stream=f"/stream/{place}",
        result=f"/result/{place}",
        silence=SILENCE_MS,
        round=shown.round,
        over=Html(' data-over="1"' if shown.ended else ""),
        object_id=shown.object_id,
        state=state,
        words=words,
        summary=(shown.summary or "") if shown.ended else "",
        error=shown.error or "",
        transcript=Html(transcript),
        again=AGAIN_S,
    )
    again = f'<noscript><meta http-equiv="refresh" content="{AGAIN_S}"></noscript>\n'
    head = '<script src="/static/live.js" defer></script>\n' + ("" if shown.ended else again)
    return _filled(_FRAME, title=f"{shown.object_id} · summary", head=Html(head), body=body)


def shelf_page(shown: Sequence[Shown]) -> str:
    """The list, with the way to the next page where there may be one."""
    rows = "".join(
        _filled(
            _ROW,
            href=f"/live/{quote(one.object_id, safe='')}",
            object_id=one.object_id,
            status=one.status,
            round=one.round,
        )
        for one in shown
    )
    more = Html("nothing yet" if not shown else "")
    if len(shown) == PAGE_MAX:
        more = Html(f'<a id="more" href="/?after={quote(shown[-1].object_id, safe="")}">more</a>')
    body = _filled(_SHELF, rows=Html(rows), more=more)
    return _filled(_FRAME, title="Summaries", head=Html(""), body=body)


def _filled(template: Template, **values: object) -> Html:
    escaped = {
        name: value if isinstance(value, Html) else escape(str(value), quote=True) for name, value in values.items()
    }
    return Html(template.substitute(escaped))
