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
    stuck_grace_ms: int = 30_000
    finalizer_timeout_ms: int = 60_000
    prepare_timeout_ms: int = 5_000
    finalizer_delay_first_ms: int = 1_000
    finalizer_delay_max_ms: int = 60_000
    loop_silence_ms: int = 5_000
    output_bytes_max: int = 256 * 1024
    checkpoint_bytes_max: int = 256 * 1024
    instance_bytes_max: int = 1024 * 1024

    @staticmethod
    def of(config: Config) -> Settings:
        def ms(seconds: float) -> int:
            return max(1, round(seconds * 1000))

        return Settings(
            slots=config.slots,
            wave_threads=config.wave_threads,
            lease_ms=ms(config.lease_s),
            renew_ms=ms(config.renew_period_s),
            fence_ms=ms(config.fence_s),
            poll_ms=ms(config.poll_s),
            scan_ms=ms(config.scan_s),
            scan_page=config.scan_page,
            stale_tries=config.stale_tries,
            deaths_max=config.deaths_max,
            mismatch_deferral_ms=ms(config.mismatch_deferral_s),
            mismatch_push_ms=ms(config.mismatch_push_s),
            stuck_grace_ms=ms(config.stuck_grace_s),
            finalizer_timeout_ms=ms(config.finalizer_timeout_s),
            prepare_timeout_ms=ms(config.prepare_timeout_s),
            loop_silence_ms=ms(config.loop_silence_s),
            output_bytes_max=config.output_bytes_max,
            checkpoint_bytes_max=config.checkpoint_bytes_max,
            instance_bytes_max=config.instance_bytes_max,
        )
