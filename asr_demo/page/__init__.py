"""The demo's web page: one reader's summary as it is being written, over server-sent events (sse-http, e2e-sse).

| file | noun |
| --- | --- |
| `companion` | the process that the supervisor runs beside the workers |
| `server` | the paths, and what is refused before any of them is asked |
| `streaming` | the open streams of this process |
| `desk` | the business objects that the pages show |
| `markup` | HTML, in which every value is escaped |
| `static/` | `live.js` and `live.css`, served from a fixed table |

It needs the extra `web`. Nothing here changes anything: every path is a GET.
"""
