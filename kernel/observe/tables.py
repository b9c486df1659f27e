"""The tables of the side path, in the same words as those of the durable store; on SQLite in a file of their own."""

from __future__ import annotations

from kernel.store.tables import Index, Table

SNAPSHOTS = "workflow_snapshots"
ATTEMPTS = "workflow_attempts"

OBSERVE_TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table(
            name=SNAPSHOTS,
            key="biz_key",
            derived=True,
            columns=(
                *("biz_key", "workflow_id", "type", "status", "revision", "business_priority"),
                *("created_time", "updated_time", "finish_time", "newest", "current_step"),
                *("waiting", "waiting_on", "waiting_since", "waiting_until", "error_code"),
            ),
            indexes=(
                Index("snapshots_workflow", ("workflow_id",), unique=True),
                # Lists: the newest first, of all and for each filter. Without one of its own a rare value, or one that
                # nobody has, would have a page walk over all rows; what only live or failed work has costs the rest
                # nothing.
                Index("snapshots_by_time", ("newest", "biz_key")),
                Index("snapshots_type", ("type", "newest", "biz_key")),
                Index("snapshots_status", ("status", "newest", "biz_key")),
                Index("snapshots_lane", ("business_priority", "newest", "biz_key")),
                Index("snapshots_step", ("current_step", "newest", "biz_key"), present="current_step"),
                Index("snapshots_awaited", ("waiting", "newest", "biz_key"), present="waiting"),
                Index("snapshots_awaited_on", ("waiting_on", "newest", "biz_key"), present="waiting_on"),
                Index("snapshots_error", ("error_code", "newest", "biz_key"), present="error_code"),
                # Counts walk over all rows: over these few columns, and not over the documents beside them.
                Index(
                    "snapshots_counts",
                    (
                        *("type", "status", "waiting", "waiting_on", "current_step", "business_priority"),
                        *("error_code", "created_time", "newest", "waiting_since"),
                    ),
                ),
                # Retention.
                Index("snapshots_finished", ("finish_time", "biz_key"), present="finish_time"),
            ),
        ),
        Table(
            name=ATTEMPTS,
            key="attempt_key",
            derived=True,
            columns=("attempt_key", "biz_key", "workflow_run", "step", "attempt", "revision", "updated_time"),
            indexes=(
                Index("attempts_one", ("biz_key", "workflow_run", "step", "attempt"), unique=True),
                Index("attempts_of_key", ("biz_key", "updated_time"), present="updated_time"),
            ),
        ),
    )
}
