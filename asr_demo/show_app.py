"""The application of the live-summary story: `kernel-supervisor start --app asr_demo.show_app:app`.

The attribute's name says what differs between runs: see `variants`.
"""

from __future__ import annotations

from asr_demo.app import COMPANIONS, LIMITS
from asr_demo.flow import Wrap, general_ports
from asr_demo.observer import show_observer, subscriber_fan_out
from asr_demo.subscriptions import SUBSCRIPTIONS, SummaryPorts, with_outside
from asr_demo.summary import STEPS, live_summary
from asr_demo.variants import variant
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


def __getattr__(name: str) -> App:
    found = variant(name, make_app, STEPS, "asr_demo.page.companion:subscriptions")
    if found is None:
        raise AttributeError(name)
    return found
