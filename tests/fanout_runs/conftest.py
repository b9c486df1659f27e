"""The engine's rigs, for fan-outs."""

from __future__ import annotations

from tests.engine.conftest import clock, durable_rig, live, make_rig, rig

__all__ = ["clock", "durable_rig", "live", "make_rig", "rig"]
