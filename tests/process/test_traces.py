"""Traces of a real tree, as the receiver that the environment names gets them."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from kernel.config import Config
from kernel.ids import trace_id_for
from kernel.runtime import embedded_redis_url, open_client
from supervisor.boot import Program
from tests.process.metered_flows import Job, metered
from tests.process.supervised import LIMIT_S, Supervised
from tests.support.wait import wait_until

APP = "tests.process.metered_flows:app"


@pytest.fixture
def received(tmp_path: Path) -> Iterator[Path]:
    """The folder of a receiver that runs."""
    folder = tmp_path / "received"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "tests.process.trace_receiver", str(folder)], stdin=subprocess.PIPE
    ) as receiver:
        wait_until((folder / "port").exists, "the receiver listens", LIMIT_S)
        yield folder
        assert receiver.stdin is not None
        receiver.stdin.close()


def spans_in(folder: Path) -> dict[str, list[Span]]:
    """Process → the spans that it has sent."""
    found: dict[str, list[Span]] = {}
    for path in sorted(folder.glob("*.traces")):
        body = path.read_bytes()
        request = ExportTraceServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
        for group in request.resource_spans:
            named = {attribute.key: attribute.value.string_value for attribute in group.resource.attributes}
            assert named["service.name"] == "workflow-kernel"
            for scope in group.scope_spans:
                found.setdefault(named["service.instance.id"], []).extend(scope.spans)
    return found


@pytest.mark.req("stp-trace")
def test_what_a_tree_did_is_sent_before_it_ends(
    supervise: Callable[..., Supervised], data_dir: Path, received: Path
) -> None:
    endpoint = f"http://127.0.0.1:{(received / 'port').read_text()}"
    tree = supervise(Program(), app=APP, redis_url=None, environ={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
    tree.wait_running()
    with open_client(Config(data_dir=str(data_dir)), data_dir, embedded_redis_url(data_dir)) as client:
        handle = client.start_or_resume(metered.plan, biz_key="1", input=Job(1))
        handle.result(timedelta(seconds=LIMIT_S))
    tree.process.terminate()
    assert tree.wait_end() == 0

    spans = spans_in(received)["worker-0"]
    assert sorted(span.name for span in spans) == ["step nap", "step nap", "step work", "workflow metered"]
    assert {span.trace_id.hex() for span in spans} == {trace_id_for(handle.workflow_id, 1)}
    (whole,) = [span for span in spans if span.name.startswith("workflow")]
    assert {span.parent_span_id for span in spans if span is not whole} == {whole.span_id}
    assert sum(len(span.links) for span in spans) == 1
