"""The engine's view of the configuration, in milliseconds."""

from __future__ import annotations

import msgspec

from kernel.config import Config


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the passes of the engine need to know; built once per process."""

    slots: int = 8
    wave_threads: int = 8
    lease_ms: int = 30_000
    renew_ms: int = 10_000
    fence_ms: int = 25_000
    poll_ms: int = 5_000
    scan_ms: int = 30_000
    scan_page: int = 200
    scan_pages: int = 25
    stale_tries: int = 8
    deaths_max: int = 3
    mismatch_deferral_ms: int = 3_600_000
    mismatch_push_ms: int = 5_000
    permit_lease_ms: int = 30_000
    permit_wait_ms: int = 30_000
    stuck_grace_ms: int = 30_000
    finalizer_timeout_ms: int = 60_000
    prepare_timeout_ms: int = 5_000
    finalizer_delay_first_ms: int = 1_000
    finalizer_delay_max_ms: int = 60_000
    loop_silence_ms: int = 5_000
    dispatch_batch: int = 100
    dispatch_round: int = 300
    dispatch_slots: int = 4
    dispatch_lease_ms: int = 15_000
    dispatch_scan_ms: int = 30_000
    dispatch_delay_ms: int = 1_000
    dispatch_delay_max_ms: int = 300_000
    signal_matched_keep_ms: int = 7 * 86_400_000
    signal_pending_keep_ms: int = 30 * 86_400_000
    input_bytes_max: int = 256 * 1024
    output_bytes_max: int = 256 * 1024
    checkpoint_bytes_max: int = 256 * 1024
    instance_bytes_max: int = 1024 * 1024

    @staticmethod
    def of(config: Config) -> Settings:
        """Every field from the setting of the same name: `x_ms` from the seconds of `x_s`, at least 1 ms. A new setting
        is one field here; a field that no setting has stands in FIXED. Raises AttributeError for any other."""
        return Settings(**{name: _value(config, name) for name in Settings.__struct_fields__ if name not in FIXED})


FIXED = frozenset({"scan_pages", "finalizer_delay_first_ms", "finalizer_delay_max_ms"})
"""Fields that are no setting: their default is their value."""
_OTHER_NAMES = {"renew_ms": "renew_period_s"}


def _value(config: Config, name: str) -> int:
    if not name.endswith("_ms"):
        number: int = getattr(config, name)
        return number
    seconds: float = getattr(config, _OTHER_NAMES.get(name, f"{name.removesuffix('_ms')}_s"))
    return max(1, round(seconds * 1000))
