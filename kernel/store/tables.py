"""The tables of the durable store, as data: keys, unique fields and indexed columns for all interpreters.

A scan may ask only for columns that are declared here, so that every query has an index and no interpreter
has to decode a whole row to answer one (MEASURED §4). A new table is a new entry; nothing else changes.
"""

from __future__ import annotations

import msgspec


class Index(msgspec.Struct, frozen=True):
    """An index over `columns`; `present` limits it to rows where that column exists (a partial index)."""

    name: str
    columns: tuple[str, ...]
    present: str | None = None
    unique: bool = False


class Table(msgspec.Struct, frozen=True):
    """One table: documents under a permanent unique `key`, with `columns` that guards of a scan may name.

    A column may be a field of a top-level map (`workflow_dispatch.due_time`). A `foreign` table belongs to the user:
    on MongoDB it may hold documents that are none of ours, with no key or one that is no text, which no scan answers;
    its other dates stay dates, and an index of the user's that does what one of ours would do serves as well. The rows
    of a `derived` one can be made anew from others: nothing but speed rests on its indexes that are not unique, so one
    that an older kernel has not made is made.
    """

    name: str
    key: str
    columns: tuple[str, ...]
    indexes: tuple[Index, ...]
    foreign: bool = False
    derived: bool = False

    @property
    def unique(self) -> tuple[Index, ...]:
        """The unique indexes beside the key."""
        return tuple(index for index in self.indexes if index.unique)


INSTANCES = "workflow_instances"
DEFINITIONS = "workflow_definitions"
"""One row per version of a Definition that a worker has registered, with the last time that one was seen alive."""
SIGNALS = "workflow_signals"
"""The inbox: one row per signal_id for as long as its retention says (kernel.signals)."""

LIMITS = "resource_limits"
"""What operators set for a resource, and what the last application that started declares for it (kernel.limits)."""

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            name=INSTANCES,
            key="workflow_id",
            columns=(
                "workflow_id",
                "biz_key",
                "type",
                "status",
                "definition_key",
                "business_priority",
                "claimable_time",
                "created_time",
                "finish_time",
                "revision",
                "worker_id",
                "claim_token",
                "deaths",
                "parked",
                "deferred",
                "permit_wait.resource",
                "permit_wait.step",
            ),
            indexes=(
                # Permanent and not partial: one biz_key is one instance for ever (id-biz-key).
                Index("instances_biz_key", ("biz_key",), unique=True),
                # The due scan and the claim fallback; rows that wait for nothing timed are not in it.
                Index("instances_due", ("claimable_time", "workflow_id"), present="claimable_time"),
                # Release by proof of death: all claims of one worker.
                Index("instances_worker", ("worker_id", "workflow_id"), present="worker_id"),
                # Rows that no live worker can run, and rows that were put aside.
                Index("instances_deferred", ("definition_key", "workflow_id"), present="deferred"),
                Index("instances_parked", ("created_time", "workflow_id"), present="parked"),
                # Who waits for a permit: to be asked about again when Redis has forgotten that they stand in line.
                Index("instances_permit_wait", ("permit_wait.resource", "workflow_id"), present="permit_wait.resource"),
            ),
        ),
        Table(
            name=DEFINITIONS,
            key="definition_key",
            columns=("definition_key", "type", "seen_time"),
            indexes=(Index("definitions_seen", ("seen_time", "definition_key"), present="seen_time"),),
        ),
        Table(
            name=SIGNALS,
            key="signal_id",  # alone, whatever the workflow: a repeat is a repeat (B-14)
            columns=(
                *("signal_id", "workflow_id", "signal_type", "wait_key", "generation"),
                *("pending_time", "match_time"),
            ),
            indexes=(
                # The sweep; a matched row leaves it, so that it costs what is pending and not what ever was.
                Index("signals_pending", ("pending_time", "signal_id"), present="pending_time"),
                # What is pending for one workflow: asked right after each suspension that waits for a signal.
                Index("signals_of_workflow", ("workflow_id", "signal_id"), present="pending_time"),
                # Retention.
                Index("signals_matched", ("match_time", "signal_id"), present="match_time"),
            ),
        ),
        # Read by key alone and listed in the order of the key.
        Table(name=LIMITS, key="resource", columns=("resource",), indexes=()),
    )
}
