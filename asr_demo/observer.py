"""Who finds out that a show has ended, and who tells it: one observer workflow a broadcast, and its fan-out (group 22).

The observer is the only one that looks again and again. When it has seen the recording, its SuccessFinalizer starts
the fan-out, which pages the subscriptions and delivers one signal to each; the observer is done by then.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from asr_demo.flow import in_ledger
from asr_demo.subscriptions import SUBSCRIPTIONS, SummaryPorts, biz_key
from asr_demo.summary import RECORDING_READY
from fanout import FanOutEvent, Outcome, Page, Subscriber, fan_out_key, make_fan_out, start_fan_out
from kernel import Client, Context, Definition, NonRetryable, Sleep, Step, workflow_id_for

LOOK_EVERY = timedelta(seconds=1)
PAGE_SIZE = 10


class BroadcastInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which broadcast is watched, and whose subscriptions are told."""

    tenant_id: str
    show_id: str
    generation: int


def watch_show(ctx: Context) -> dict[str, Any] | Sleep:
    """Look at the show; while it is live, sleep and look again."""
    ports: SummaryPorts = ctx.ports
    broadcast: BroadcastInput = ctx.input
    show = ports.shows.read(broadcast.show_id)
    if show is None or show.generation != broadcast.generation:
        raise NonRetryable(f"there is no broadcast {broadcast.generation} of show {broadcast.show_id}")
    return Sleep(LOOK_EVERY) if show.recording is None else {"recording": show.recording}


def tell_subscribers(ctx: Context) -> None:
    """SuccessFinalizer: start the one fan-out of this event; its key makes a repeat harmless (fan-start-idempotent)."""
    start_fan_out(ctx, subscriber_fan_out, recording_event(ctx.input), priority="realtime")


def recording_event(broadcast: BroadcastInput) -> FanOutEvent:
    """What is told: the recording of this broadcast is there."""
    return FanOutEvent(
        event_id=f"recording:{broadcast.show_id}",
        signal_type=RECORDING_READY,
        wait_key=broadcast.show_id,
        generation=broadcast.generation,
        identities={"tenant_id": broadcast.tenant_id, "show_id": broadcast.show_id},
    )


def begin_observing(client: Client, broadcast: BroadcastInput) -> str:
    """Register the observer of this broadcast; its workflow_id. The observer of the broadcast before it is ended first,
    so that no two generations of one show are watched (id-resource-generation)."""
    if broadcast.generation > 1:
        before = msgspec.structs.replace(broadcast, generation=broadcast.generation - 1)
        client.supersede(workflow_id_for(observer_key(before)))
    return client.start_or_resume(show_observer, biz_key=observer_key(broadcast), input=broadcast).workflow_id


def observer_key(broadcast: BroadcastInput) -> str:
    """The biz_key of a broadcast's one observer."""
    return f"show_observer:{broadcast.show_id}:{broadcast.generation}"


def fan_out_id(broadcast: BroadcastInput) -> str:
    """The workflow_id of the fan-out that this broadcast's observer starts."""
    return workflow_id_for(fan_out_key(subscriber_fan_out.type, recording_event(broadcast)))


def signals_of(client: Client, broadcast: BroadcastInput) -> int:
    """How many signals the completed fan-out has stored, by its own count; one a subscriber, whatever was repeated."""
    outcome: Outcome = client.result(fan_out_id(broadcast), timedelta(0), Outcome)
    tally = outcome.tally
    return tally.told + tally.duplicates + tally.unknown + tally.ended


def read_page(ctx: Context, cursor: Any, limit: int) -> Page:
    """The next subscriptions of the show, in the order of their ids."""
    event: FanOutEvent = ctx.input
    ports: SummaryPorts = ctx.ports
    where = {"show_id": event.identities["show_id"]}
    ids = [row[SUBSCRIPTIONS.key] for row in ports.subscriptions.page(where, after=cursor, limit=limit)]
    told = [Subscriber(biz_key=biz_key(event.identities["tenant_id"], object_id)) for object_id in ids]
    return Page(subscribers=told, next_cursor=ids[-1] if len(ids) == limit else None)


subscriber_fan_out = make_fan_out("subscriber_fan_out", read_page, page_size=PAGE_SIZE)

show_observer = Definition(
    type="show_observer",
    input=BroadcastInput,
    identity=("show_id", "generation"),
    steps=[Step("watch_show", in_ledger(watch_show), timeout=timedelta(seconds=30), max_retry=10)],
    success_finalizer=tell_subscribers,
)
