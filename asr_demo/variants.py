"""Variants of the demo's applications, by name: what differs between runs travels to every process as the App's name.

asr_demo.app:app                     the application
asr_demo.app:held_at_STEP            … whose first invocation of STEP waits to be killed (see `holding`)
asr_demo.app:app_page_PORT           … with the web page beside it; PORT 0 is any free one
asr_demo.app:held_at_STEP_page_PORT  both
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from asr_demo.flow import PAGE, Wrap
from asr_demo.holding import HELD_PREFIX, held_at
from kernel import App, Companion

PLAIN = "app"
_NAME = re.compile(rf"({PLAIN}|{HELD_PREFIX}([a-z_]+?))(?:_page_([0-9]{{1,5}}))?")


def variant_name(kill_at: str | None, port: int | None) -> str:
    """The attribute that has these: the step that is held, and the page's port; None: neither."""
    held = PLAIN if kill_at is None else f"{HELD_PREFIX}{kill_at}"
    return held if port is None else f"{held}_page_{port}"


def variant(name: str, make: Callable[[Wrap], App], steps: Collection[str], page_role: str) -> App | None:
    """The application that `name` asks for; None when it asks for none. `page_role` is the web process's."""
    found = _NAME.fullmatch(name)
    if found is None or (found[2] is not None and found[2] not in steps):
        return None
    app = make(_as_it_is if found[2] is None else held_at(found[2]))
    return app if found[3] is None else _with_page(app, page_role, int(found[3]))


def _as_it_is(name: str, activity: Callable[..., object]) -> Callable[..., object]:
    return activity


def _with_page(app: App, role: str, port: int) -> App:
    """It stops after the workers: who reads along shall see the end of what they end last."""
    return App(
        definitions=app.definitions.values(),
        limits=app.limits,
        dispatch_sources=(*app.objects, *app.source_makers),
        ports=app.ports,
        companions=(*app.companions, Companion(PAGE, role, port)),
    )
