"""Every metric of the kernel: name, kind, labels, who counts it, what it says (ECOSYSTEM §8). No other name is exposed.

Seconds, `_total` for counters, one prefix. No label holds an id of a workflow, a business key or a worker, and a
resource is told by its kind: how many series there are depends on what an application declares, not on its traffic.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
Source = Literal["worker", "scrape", "supervisor"]
"""`worker`: counted where it happens, in files that are keyed by the slot; `scrape`: looked up by the process that
serves, from Redis and from snapshots; `supervisor`: what the supervisor's status says."""

BUCKETS_S = (0.005, 0.015, 0.05, 0.15, 0.5, 1.5, 5.0, 15.0, 60.0, 180.0, 600.0, 3600.0)
"""Waits: 5 ms to an hour, each about three times the one before."""
CALL_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5)
"""Calls of stores: 0.1 ms to 2.5 s."""


class Meter(NamedTuple):
    """One metric."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    source: Source
    help: str
    buckets: tuple[float, ...] = BUCKETS_S


def _counted(name: str, labels: str, help_: str) -> Meter:
    return Meter(name, "counter", tuple(labels.split()), "worker", help_)


def _timed(name: str, labels: str, help_: str, buckets: tuple[float, ...] = BUCKETS_S) -> Meter:
    return Meter(name, "histogram", tuple(labels.split()), "worker", help_, buckets)


def _looked_up(name: str, labels: str, help_: str) -> Meter:
    return Meter(name, "gauge", tuple(labels.split()), "scrape", help_)


def _told(name: str, kind: Kind, labels: str, help_: str) -> Meter:
    return Meter(name, kind, tuple(labels.split()), "supervisor", help_)


METERS: dict[str, Meter] = {
    meter.name: meter
    for meter in (
        _looked_up("kernel_lane_depth", "lane", "Candidates in the lane."),
        _looked_up("kernel_lane_ready", "lane", "Candidates that are due."),
        _looked_up("kernel_lane_delayed", "lane", "Candidates that are due later."),
        _looked_up("kernel_lane_oldest_wait_seconds", "lane", "How long the candidate that is due longest has waited."),
        _counted("kernel_lane_popped_total", "lane", "Candidates taken from the lane."),
        _counted("kernel_lane_stale_total", "lane", "Candidates that were nothing to claim any more."),
        _timed("kernel_schedule_wait_seconds", "lane type", "From the time somebody could act to the claim."),
        _looked_up("kernel_permit_in_use", "resource", "Places held or reserved."),
        _looked_up("kernel_permit_limit", "resource", "Calls allowed at once; +Inf without a limit, 0 when paused."),
        _looked_up("kernel_permit_waiters", "resource", "Steps that wait for a place."),
        _counted("kernel_permit_granted_total", "resource", "Places granted."),
        _counted("kernel_permit_refused_total", "resource reason", "Places refused, by the limit that refused."),
        _timed("kernel_permit_wait_seconds", "resource", "From the first refusal to the grant; 0 without a refusal."),
        _counted("kernel_permit_expired_total", "resource", "Places lost while their call ran."),
        _looked_up("kernel_workflows", "type status", "Workflows as the side path has seen them."),
        _counted("kernel_workflows_started_total", "type", "Workflows whose first step was entered."),
        _counted("kernel_workflows_finished_total", "type status", "Workflows that ended in a worker."),
        _timed("kernel_workflow_duration_seconds", "type status", "From when the run could begin to its end."),
        _timed("kernel_step_execution_seconds", "type step", "How long the activity ran in one attempt."),
        _timed("kernel_step_external_wait_seconds", "type step", "Waits of a step that is over, where it waited."),
        _counted("kernel_step_attempts_total", "type step outcome", "Ends of attempts, sleeps and yields included."),
        _counted("kernel_claims_total", "outcome", "Candidates that were tried, by what came of it."),
        _counted("kernel_claims_lost_total", "reason", "Claims that their worker had to give up."),
        _counted("kernel_claim_renewals_total", "outcome", "Renewals of claims."),
        _counted("kernel_takeovers_total", "", "Claims that go on with what another worker left."),
        _timed("kernel_takeover_delay_seconds", "", "From when such work could be taken to the claim."),
        _timed("kernel_commit_seconds", "op outcome", "Writes to the durable store.", CALL_BUCKETS_S),
        _counted("kernel_fencing_rejected_total", "type", "Writes of a claim that was somebody else's by then."),
        _counted("kernel_fingerprint_deferred_total", "type", "Workflows deferred: no live worker has their version."),
        _counted("kernel_signals_total", "outcome", "Signals; `early` ones wait in the inbox."),
        _looked_up("kernel_dispatch_pending", "source", "Open dispatch intents, counted to 1,000 a source."),
        _looked_up("kernel_dispatch_oldest_age_seconds", "source", "Age of the oldest of the next 20 due intents."),
        _counted("kernel_dispatch_confirmed_total", "", "Intents that a dispatcher has registered and confirmed."),
        _counted("kernel_stream_records_total", "", "Frames stored for readers."),
        _counted("kernel_stream_bytes_total", "", "Bytes of these frames."),
        _counted("kernel_stream_resets_total", "", "Streams begun anew."),
        _told("kernel_sse_connections", "gauge", "slot role", "Open streams of a companion that reports `streams`."),
        Meter("kernel_observation_queue", "gauge", (), "worker", "Events that wait to be written."),
        _counted("kernel_observation_dropped_total", "", "Events that no view will show."),
        _counted("kernel_observation_errors_total", "", "Failed writes of observations."),
        _timed("kernel_lua_seconds", "script", "Calls of a script.", CALL_BUCKETS_S),
        _counted("kernel_lua_noscript_total", "script", "Calls that had to send the script's text."),
        Meter("kernel_store_up", "gauge", ("store",), "worker", "0 while some process does not reach the store."),
        _counted("kernel_store_errors_total", "store op", "Calls that a store did not answer."),
        _told("kernel_process_up", "gauge", "slot role", "1 while the process runs."),
        _told("kernel_process_restarts_total", "counter", "slot role cause", "Successors, by the end before them."),
        _told("kernel_process_resident_bytes", "gauge", "slot role", "Resident memory."),
        _told("kernel_process_cpu_seconds_total", "counter", "slot role", "Processor time of the present process."),
        _told("kernel_process_loop_lag_seconds", "gauge", "slot role", "Since when the slowest loop has not moved."),
        _told("kernel_log_records_total", "counter", "level", "Log records of the whole tree."),
        _told("kernel_log_dropped_total", "counter", "where", "Log records lost in children or for want of a reader."),
        _told("kernel_build_info", "gauge", "version python lua_version", "1."),
    )
}
"""By name, in the order in which they are shown."""
