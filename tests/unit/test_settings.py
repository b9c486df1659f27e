"""The engine's settings come from the configuration, field by field, and no field is forgotten."""

from __future__ import annotations

import msgspec
import pytest

from kernel.config import Config
from kernel.engine.settings import FIXED, Settings


def test_the_defaults_of_both_are_the_same() -> None:
    assert Settings.of(Config()) == Settings()


def config_field(name: str) -> str:
    return f"{name.removesuffix('_ms')}_s" if name.endswith("_ms") else name


@pytest.mark.parametrize("name", [name for name in Settings.__struct_fields__ if name not in FIXED])
def test_every_field_follows_its_setting(name: str) -> None:
    changed, unit = {"fence_ms": ("fence_margin_s", -1_000)}.get(name, (config_field(name), 1_000))
    if not name.endswith("_ms"):
        unit = 1
    before = Config(renew_s=1.0, fence_margin_s=5.0)
    after = msgspec.structs.replace(before, **{changed: getattr(before, changed) + 2})

    assert getattr(Settings.of(after), name) - getattr(Settings.of(before), name) == 2 * unit


def test_a_duration_is_never_zero() -> None:
    assert Settings.of(msgspec.structs.replace(Config(), poll_s=0.0001)).poll_ms == 1


def test_what_is_no_setting_keeps_its_default() -> None:
    assert set(Settings.__struct_fields__) > FIXED
    assert not {config_field(name) for name in FIXED} & set(Config.__struct_fields__)
