"""`python -m tests.process.trace_receiver FOLDER`: takes traces over HTTP and writes each request into FOLDER.

Its port is in FOLDER/port. It ends with its stdin.
"""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
_numbers = count(1)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        draft = FOLDER / f"{next(_numbers)}.new"
        draft.write_bytes(body)
        draft.rename(draft.with_suffix(".traces" if self.path == "/v1/traces" else ".other"))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        draft = FOLDER / "port.new"
        draft.write_text(str(server.server_address[1]))
        draft.rename(FOLDER / "port")
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
