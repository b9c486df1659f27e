"""The names that dashboards and alerts of others rest on, and the alerts and the dashboard that we ship."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from itertools import takewhile
from typing import Any

from kernel.observe.metric_names import METERS

NAMES = [
    "kernel_lane_depth",
    "kernel_lane_ready",
    "kernel_lane_delayed",
    "kernel_lane_oldest_wait_seconds",
    "kernel_lane_popped_total",
    "kernel_lane_stale_total",
    "kernel_schedule_wait_seconds",
    "kernel_permit_in_use",
    "kernel_permit_limit",
    "kernel_permit_waiters",
    "kernel_permit_granted_total",
    "kernel_permit_refused_total",
    "kernel_permit_wait_seconds",
    "kernel_permit_expired_total",
    "kernel_workflows",
    "kernel_workflows_started_total",
    "kernel_workflows_finished_total",
    "kernel_workflow_duration_seconds",
    "kernel_step_execution_seconds",
    "kernel_step_external_wait_seconds",
    "kernel_step_attempts_total",
    "kernel_claims_total",
    "kernel_claims_lost_total",
    "kernel_claim_renewals_total",
    "kernel_takeovers_total",
    "kernel_takeover_delay_seconds",
    "kernel_commit_seconds",
    "kernel_fencing_rejected_total",
    "kernel_fingerprint_deferred_total",
    "kernel_signals_total",
    "kernel_dispatch_pending",
    "kernel_dispatch_oldest_age_seconds",
    "kernel_dispatch_confirmed_total",
    "kernel_stream_records_total",
    "kernel_stream_bytes_total",
    "kernel_stream_resets_total",
    "kernel_sse_connections",
    "kernel_observation_queue",
    "kernel_observation_dropped_total",
    "kernel_observation_errors_total",
    "kernel_lua_seconds",
    "kernel_lua_noscript_total",
    "kernel_store_up",
    "kernel_store_errors_total",
    "kernel_process_up",
    "kernel_process_restarts_total",
    "kernel_process_resident_bytes",
    "kernel_process_cpu_seconds_total",
    "kernel_process_loop_lag_seconds",
    "kernel_log_records_total",
    "kernel_log_dropped_total",
    "kernel_build_info",
]
LABELS = {
    "lane", "type", "resource", "reason", "status", "step", "outcome", "op", "source", "script", "store", "slot",
    "role", "cause", "level", "where", "version", "python", "lua_version",
}  # fmt: skip
"""Each has few values: none is an id of a workflow, a business key or a worker."""
SHIPPED = files("supervisor") / "observability"
_NAME = re.compile(r"kernel_[a-z_]+")


def test_the_table_has_these_names_and_no_other() -> None:
    assert list(METERS) == NAMES


def test_names_and_labels_keep_the_conventions() -> None:
    for name, meter in METERS.items():
        assert meter.name == name
        assert name.endswith("_total") == (meter.kind == "counter"), name
        assert set(meter.labels) <= LABELS
        assert meter.help.endswith(".")
        assert list(meter.buckets) == sorted(set(meter.buckets)) and len(meter.buckets) == 12


def test_every_alert_asks_for_metrics_that_exist_by_labels_that_they_have() -> None:
    rules = read_rules((SHIPPED / "alerts.yaml").read_text(encoding="utf-8"))
    assert {rule["alert"] for rule in rules} == {
        "KernelOldestWait", "KernelDispatchAge", "KernelTakeovers", "KernelProcessDown", "KernelRestarts",
        "KernelStoreDown", "KernelObservationsDropped",
    }  # fmt: skip
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        asked = check_expression(rule["expr"])
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= {label for name in asked for label in METERS[name].labels}


def test_every_panel_of_the_dashboard_asks_for_metrics_that_exist() -> None:
    board = json.loads((SHIPPED / "grafana.json").read_text(encoding="utf-8"))
    assert board["uid"] == "workflow-kernel"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        for target in panel["targets"]:
            asked = check_expression(target["expr"])
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert used <= {label for name in asked for label in METERS[name].labels}, panel["title"]


def check_expression(expression: str) -> list[str]:
    """The metrics of an expression: each is in the table, with the suffix of its kind and labels that it has."""
    assert all(expression.count(a) == expression.count(b) for a, b in ("()", "[]", "{}")), expression
    asked = []
    for found in _NAME.findall(expression):
        name = found.removesuffix("_bucket")
        assert METERS[name].kind == ("histogram" if found.endswith("_bucket") else METERS[name].kind)
        assert METERS[name].kind != "histogram" or found.endswith("_bucket"), expression
        asked.append(name)
    labels = {label for name in asked for label in METERS[name].labels}
    for group in re.findall(r"by \(([\w, ]+)\)", expression):
        assert {label.strip() for label in group.split(",")} - {"le"} <= labels, expression
    assert asked, expression
    return asked


def read_rules(text: str) -> list[dict[str, Any]]:
    """The rules of a file of alerts. It is written in a small part of YAML, which this reads: maps, lists of maps, and
    texts in double quotes or plain, two spaces a level."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert not [line for line in lines if "\t" in line or line != line.rstrip()]
    found = _block(lines, 0)
    groups = found["groups"]
    assert [group["name"] for group in groups] == ["workflow-kernel"]
    rules: list[dict[str, Any]] = groups[0]["rules"]
    return rules


def _block(lines: list[str], indent: int) -> Any:
    if lines[0][indent:].startswith("- "):
        starts = [number for number, line in enumerate(lines) if line[indent:].startswith("- ")]
        parts = [lines[a:b] for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]
        return [_block([f"{' ' * (indent + 2)}{part[0][indent + 2 :]}", *part[1:]], indent + 2) for part in parts]
    found: dict[str, Any] = {}
    while lines:
        head, *lines = lines
        assert len(head) - len(head.lstrip()) == indent, head
        key, colon, value = head.strip().partition(":")
        assert colon and key not in found, head
        inner = list(takewhile(lambda line: line.startswith(" " * (indent + 1)), lines))
        lines = lines[len(inner) :]
        found[key] = _block(inner, indent + 2) if inner else _text(value.strip())
    return found


def _text(value: str) -> str:
    if value.startswith('"'):
        return str(json.loads(value))
    assert not re.search(r"(: | #)|^[\[{&*!|>'%@`]", value), f"needs quotes: {value}"
    return value
