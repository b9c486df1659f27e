"""The application of the live-summary story: `kernel-supervisor start --app asr_demo.show_app:app`.

`asr_demo.show_app:held_at_STEP` is the same application, whose first invocation of STEP waits to be killed.
"""

from __future__ import annotations

from typing import Any

from asr_demo.app import COMPANIONS, LIMITS
from asr_demo.flow import Wrap, general_ports
from asr_demo.holding import HELD_PREFIX, held_at
from asr_demo.observer import show_observer, subscriber_fan_out
from asr_demo.subscriptions import SUBSCRIPTIONS, SummaryPorts, with_outside
from asr_demo.summary import STEPS, live_summary
from kernel import App, PortsRequest


def make_ports(request: PortsRequest) -> SummaryPorts:
    """The ports of one process."""
    return with_outside(general_ports(request), request.objects[SUBSCRIPTIONS.name])


def make_app(wrap: Wrap = lambda _name, activity: activity) -> App:
    """The application, with every activity of the summary as `wrap` makes it."""
    return App(
        definitions=[live_summary(wrap), show_observer, subscriber_fan_out],
        limits=LIMITS,
        dispatch_sources=[SUBSCRIPTIONS],
        ports=make_ports,
        companions=COMPANIONS,
    )


app = make_app()


def __getattr__(name: str) -> Any:
    step = name.removeprefix(HELD_PREFIX)
    if name.startswith(HELD_PREFIX) and step in STEPS:
        return make_app(held_at(step))
    raise AttributeError(name)
