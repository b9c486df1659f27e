"""An application with business objects, for the commands that look at them."""

from __future__ import annotations

from kernel import App, Definition, Objects, Step

SHOWS = Objects(name="shows", grace_ms=0)
app = App(definitions=[Definition(type="t", steps=[Step("only", lambda _ctx: None)])], dispatch_sources=[SHOWS])
