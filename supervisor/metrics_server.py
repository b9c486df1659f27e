"""The role that serves `/metrics`, `/livez` and `/readyz`, on a socket that the supervisor holds.

Workers and dispatchers have ended when its own order to drain comes, so `/readyz` has said 503 since the drain began.
"""

from __future__ import annotations

import logging

from kernel.clock import SystemClock
from supervisor.child import ChildLink
from supervisor.exposing import METRICS_DIR
from supervisor.http_server import END_S, HttpServer
from supervisor.metrics_looks import Looks
from supervisor.metrics_paths import metrics_app
from supervisor.metrics_scrape import Scrape

log = logging.getLogger("supervisor.metrics")

REPORT_S = 1.0
CONNECTIONS_MAX = 64


def metrics(link: ChildLink) -> int:
    """The role."""
    assert link.listener is not None, "the supervisor gives this role its socket"
    looks = Looks(link.config, link.data_dir, link.redis_url, SystemClock())
    scrape = Scrape(link.data_dir / METRICS_DIR, looks)
    host = str(link.listener.getsockname()[0])
    app = metrics_app(link.config, looks, scrape, host)
    server = HttpServer(app, link.listener, link.ready, connections_max=CONNECTIONS_MAX)
    looks.start()
    server.start()
    try:
        while not server.over.is_set():
            order = link.next_order(REPORT_S)
            link.report({"loops": {"http": server.silent_s()}})
            if order is not None and order.kind in ("drain", "hasten"):
                server.stop()
                server.over.wait(2 * END_S)
                return 0
    finally:
        looks.stop()
    if server.failure is not None:
        link.failed(f"metrics: {type(server.failure).__name__}: {server.failure}")
        log.error("the metrics are not served any more", exc_info=server.failure)
    return 1
