"""Settings: every interval, lease, limit and threshold, its default, and where a value came from (dc-config).

Precedence: command-line flags over the environment (`KERNEL_<NAME>`, and the conventional `MONGODB_URI` and
`REDIS_URL`) over a TOML file over the defaults. A setting has one name everywhere: `lease_s` in the file is
`KERNEL_LEASE_S` in the environment. Durations are seconds (fractions allowed); sizes are bytes.

This module imports nothing but msgspec and the vocabulary, so that the supervisor may use it before it forks.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from kernel.errors import InvalidConfig
from kernel.ids import NAME_PATTERN
from kernel.toml_lines import line_of, lines_of

Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Positive = Annotated[int, Meta(ge=1, le=1_000_000)]

SECRETS = frozenset({"mongodb_uri", "observe_mongodb_uri", "redis_url"})
_CONVENTIONAL = {"mongodb_uri": ("MONGODB_URI", "MONGO_URI"), "redis_url": ("REDIS_URL", "VALKEY_URL")}


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Capacity of one downstream resource, cluster-wide (prm-two-limits). 0 switches one limit off;
    stopping a resource is its own switch (DECISIONS 11)."""

    max_concurrency: Count = 0
    max_starts_per_second: Count = 0
    paused: bool = False


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one supervisor tree. The defaults are the article's."""

    app: str | None = None
    data_dir: str = ".kernel"
    namespace: str = "default"

    mongodb_uri: str | None = None
    mongodb_database: str = "workflow_kernel"
    redis_url: str | None = None
    durability: Literal["full", "normal"] = "full"

    workers: Annotated[int, Meta(ge=0, le=256)] = 2
    dispatchers: Annotated[int, Meta(ge=0, le=64)] = 1
    slots: Annotated[int, Meta(ge=1, le=1024)] = 8
    wave_threads: Annotated[int, Meta(ge=1, le=64)] = 8

    lease_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 30.0
    renew_s: Seconds | None = None
    """Period of claim renewal; a third of the lease when not set (clm-renew-third)."""
    fence_margin_s: Seconds | None = None
    """No effect starts later than lease − margin after the last renewal; a sixth of the lease when not set."""
    poll_s: Seconds = 5.0
    scan_s: Seconds = 30.0
    scan_page: Positive = 200
    mismatch_deferral_s: Seconds = 3600.0
    mismatch_push_s: Seconds = 5.0
    stale_tries: Positive = 8
    deaths_max: Count = 3
    """Deaths without progress after which an instance is parked; 0 = never (DECISIONS 2)."""
    stuck_grace_s: Seconds = 30.0
    finalizer_timeout_s: Seconds = 60.0
    prepare_timeout_s: Seconds = 5.0
    loop_silence_s: Seconds = 5.0
    signal_matched_keep_s: Seconds = 7 * 86_400.0
    """How long the inbox keeps a signal that was matched: a repeat of its id is known for that long (DECISIONS 14)."""
    signal_pending_keep_s: Seconds = 30 * 86_400.0
    """How long it keeps one for a workflow that is unknown or has ended; of a live workflow none is ever removed."""

    dispatch_batch: Annotated[int, Meta(ge=1, le=500)] = 100
    """Objects with an open intent that one batch takes from Redis or from a page of the scan (dsp-limits)."""
    dispatch_round: Positive = 300
    """Objects that one round of a dispatcher handles at most, over all its batches."""
    dispatch_slots: Annotated[int, Meta(ge=1, le=64)] = 4
    """Objects that one dispatcher registers at the same time, hence holds leases of."""
    dispatch_lease_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 15.0
    """The lease of one object; renewed at a third of it while registering takes long."""
    dispatch_scan_s: Seconds = 30.0
    """Period of the scan for intents that Redis lost; one dispatcher of all does it (dsp-scan-mutex)."""
    dispatch_delay_s: Seconds = 1.0
    """Delay of an intent after its first vain try; doubled with each further one."""
    dispatch_delay_max_s: Seconds = 300.0

    permit_lease_s: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0
    """How long a place of a resource is held without renewal; renewed at a third of it (prm-lease)."""
    permit_wait_s: Annotated[float, Meta(ge=0.05, le=600)] = 30.0
    """The net beneath a hand-over: who was refused asks again after that time, times its place in line over the limit,
    and after 600 s at most (prm-retry-delay)."""

    stream_flush_s: Seconds = 0.1
    """How long text for a client's stream is gathered into one frame (sse-aggregate)."""
    stream_flush_bytes: Annotated[int, Meta(ge=1, le=16_384)] = 1024
    """A frame with as much text is sent at once."""
    stream_buffer_bytes: Annotated[int, Meta(ge=16_384, le=64 * 1024 * 1024)] = 256 * 1024
    """What may wait for a slow Redis in one worker and claim; beyond it frames are dropped and counted."""
    stream_bytes_max: Annotated[int, Meta(ge=4096, le=256 * 1024 * 1024)] = 4 * 1024 * 1024
    """All frames of one stream in Redis, each counting 64 bytes more than it has; beyond it frames are dropped."""
    stream_running_s: Seconds = 6 * 3600.0
    """How long frames live after the last one was appended: longer than a slow step is silent (sse-ttl-running)."""
    stream_read_out_s: Seconds = 60.0
    """How long frames live after the terminal frame (sse-ttl-terminal)."""
    stream_kept_s: Seconds = 240.0
    """How long generation and terminal reference live after the end; who comes later gets the end from the store."""
    stream_poll_s: Annotated[float, Meta(ge=0.01, le=60)] = 1.0
    """The net beneath wakeups: a reader looks for frames at least so often."""
    stream_check_s: Annotated[float, Meta(ge=0.05, le=600)] = 5.0
    """How often a reader asks the store whether the workflow has ended (sse-terminal-retry)."""
    stream_heartbeat_s: Annotated[float, Meta(ge=0.1, le=600)] = 15.0
    """A reader without news gets a heartbeat so often, so that no proxy takes its connection for dead (A82)."""

    observe: Literal["on", "off"] = "on"
    """Keep snapshots of workflows and their attempts for the operator's views; nothing that runs work needs them."""
    observe_mongodb_uri: str | None = None
    """Where they are kept, if not beside the durable store. Without MongoDB: a file of its own in the data folder."""
    observe_queue: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Events that may wait in one process; beyond it they are dropped and counted (obs-nonblocking)."""
    observe_batch: Annotated[int, Meta(ge=1, le=10_000)] = 256
    """Events that one write takes at most (obs-batch)."""
    observe_flush_s: Annotated[float, Meta(ge=0.01, le=60)] = 0.25
    """An event is written no later than this after it was noted, while the store answers."""
    observe_keep_s: Seconds = 30 * 86_400.0
    """How long the snapshot and the attempts of a workflow are kept after its end."""

    lane_weights: tuple[Positive, Positive, Positive, Positive] = (8, 6, 4, 2)
    lane_burst: Count = 8
    redis_budget_s: Seconds = 1.0

    input_bytes_max: Positive = 256 * 1024
    output_bytes_max: Positive = 256 * 1024
    checkpoint_bytes_max: Positive = 256 * 1024
    instance_bytes_max: Annotated[int, Meta(ge=1024, le=8 * 1024 * 1024)] = 1024 * 1024

    drain_s: Seconds = 25.0
    restart_first_s: Seconds = 0.2
    restart_max_s: Seconds = 30.0
    restart_give_up: Positive = 5
    restart_stable_s: Seconds = 10.0

    metrics: int | str | None = None
    """Where `/metrics`, `/livez`, `/readyz` are served: a loopback port (0: any), or "HOST:PORT"; else nowhere."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "text", "json"] = "auto"
    log_file: str | None = None

    limits: dict[str, Limit] = {}

    def shown(self, name: str) -> object:
        """The value of setting `name` for people: secrets are masked."""
        value = getattr(self, name)
        return "***" if name in SECRETS and value is not None else value

    @property
    def renew_period_s(self) -> float:
        return self.renew_s if self.renew_s is not None else self.lease_s / 3

    @property
    def fence_s(self) -> float:
        margin = self.fence_margin_s if self.fence_margin_s is not None else self.lease_s / 6
        return self.lease_s - margin


class Origin(msgspec.Struct, frozen=True):
    """Where one value came from: `flag`, `env KERNEL_X`, `file PATH:LINE` or `default`."""

    text: str


class Loaded(msgspec.Struct, frozen=True):
    """A checked configuration and the origin of each of its values."""

    config: Config
    origins: dict[str, Origin]


def load(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    file: str | Path | None = None,
) -> Loaded:
    """Read, merge and check all sources. Raises InvalidConfig with one line that names setting and rule.

    None among `flags` is not given. `file` defaults to the working directory's `kernel.toml`, if there is one.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {name: Origin("default") for name in Config.__struct_fields__}
    for name, raw, origin in (*_from_file(file), *_from_environment(environ), *_from_flags(flags or {})):
        values[name] = _converted(name, raw, origin)
        origins[name] = Origin(origin)
    config = Config(**values)
    _check_relations(config)
    return Loaded(config, origins)


def _from_file(file: str | Path | None) -> list[tuple[str, object, str]]:
    path = Path(file) if file is not None else Path("kernel.toml")
    if file is None and not os.path.lexists(path):
        return []
    try:
        text, mode = path.read_text(encoding="utf-8"), path.stat().st_mode
        table = tomllib.loads(text)
    except OSError as error:
        raise InvalidConfig(f"config file {path}: {error.strerror or 'can not be read'}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"config file {path}: {error}") from None
    places = {name: f"file {path}:{line}" for name, line in lines_of(table, text).items()}
    if "limits" in table:
        table["limits"] = _limits(table["limits"], lambda *below: f"file {path}:{line_of(('limits', *below), text)}")
    for name in SECRETS & table.keys():
        if mode & 0o077 and re.search("@|password", str(table[name]), re.IGNORECASE):
            raise InvalidConfig(f"{name} ({places[name]}): holds a password that others may read: chmod 600 {path}")
    return [(_known(name, places[name]), raw, places[name]) for name, raw in table.items()]


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, object, str]]:
    found: list[tuple[str, object, str]] = []
    for name, variables in _CONVENTIONAL.items():
        given = [variable for variable in reversed(variables) if environ.get(variable)]
        found.extend((name, environ[variable], f"env {variable}") for variable in given)
    for variable, text in sorted(environ.items()):
        if not variable.startswith("KERNEL_") or variable.startswith("KERNEL_TEST_") or variable == "KERNEL_CONFIG":
            continue
        name = _known(variable.removeprefix("KERNEL_").lower(), f"env {variable}")
        if text.strip():
            found.append((name, text.strip(), f"env {variable}"))
    return found


def _from_flags(flags: Mapping[str, object]) -> list[tuple[str, object, str]]:
    return [(_known(name, "flag"), value, "flag") for name, value in flags.items() if value is not None]


def _known(name: str, origin: str, names: tuple[str, ...] = Config.__struct_fields__) -> str:
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InvalidConfig(f"{origin}: there is no setting {name!r}{hint}")


def _converted(name: str, raw: object, origin: str) -> Any:
    wanted = next(f.type for f in msgspec.structs.fields(Config) if f.name == name)
    if isinstance(raw, str) and wanted is not str:
        if getattr(wanted, "__origin__", None) is int and not raw.lstrip("+-").isdecimal():  # "1e3" is 1000 to msgspec
            raise InvalidConfig(f"{name} ({origin}): a whole number is expected, got {raw!r}")
        raw = _from_text(raw, wanted)
    if name == "limits":
        return _limits(raw, lambda *_: origin)
    choices = setting_choices(name)
    if choices and raw not in choices:
        raise InvalidConfig(f"{name} ({origin}): {raw!r} is none of {', '.join(choices)}")
    try:
        return msgspec.convert(raw, wanted, strict=not isinstance(raw, str))
    except msgspec.ValidationError as error:
        shown = "***" if name in SECRETS else repr(raw)
        raise InvalidConfig(f"{name} ({origin}): {error}, got {shown}") from None


def _from_text(raw: str, wanted: object) -> object:
    """Text from the environment: a comma-separated list where the setting is a tuple."""
    if getattr(wanted, "__origin__", None) is tuple:
        return [int(part) if part.strip().isdigit() else part for part in raw.split(",")]
    return raw


def _limits(raw: object, place: Callable[..., str]) -> dict[str, Limit]:
    """`place` tells where the names below the table stand."""
    if not isinstance(raw, Mapping):
        raise InvalidConfig(f"limits ({place()}): expected a table of resources, got {raw!r}")
    return {str(resource): _limit(str(resource), entry, place) for resource, entry in raw.items()}


def _limit(resource: str, entry: object, place: Callable[..., str]) -> Limit:
    if NAME_PATTERN.fullmatch(resource) is None:
        raise InvalidConfig(f"limits.{resource} ({place(resource)}): not a resource name")
    parts: list[tuple[tuple[str, ...], object]] = [((), entry)]
    if isinstance(entry, Mapping):
        parts = [((field,), {field: value}) for field, value in entry.items()]
    for below, part in parts:
        try:
            msgspec.convert(part, Limit)
        except msgspec.ValidationError as error:
            where = f"limits.{resource} ({place(resource, *below)})"
            for field in below:
                _known(field, where, Limit.__struct_fields__)
            raise InvalidConfig(f"{where}: {error}") from None
    return msgspec.convert(entry, Limit)


def _check_relations(config: Config) -> None:
    if NAME_PATTERN.fullmatch(config.namespace) is None:
        raise InvalidConfig(f"namespace: {config.namespace!r} is no name: a lower-case letter, then a–z, 0–9, _")
    if config.renew_period_s * 3 > config.lease_s * 1.0001:
        raise InvalidConfig(
            f"renew_s: {config.renew_s:g} s is more than a third of lease_s ({config.lease_s:g} s); "
            "two renewals must be able to fail before the lease ends"
        )
    if not 0 < config.fence_s < config.lease_s or config.fence_s <= config.renew_period_s:
        raise InvalidConfig("fence_margin_s: lease − margin must lie between the renewal period and the lease")
    if config.dispatch_batch > config.dispatch_round:
        raise InvalidConfig("dispatch_batch: at most dispatch_round, which limits all batches of a round together")
    if config.dispatch_delay_s > config.dispatch_delay_max_s:
        raise InvalidConfig("dispatch_delay_s: at most dispatch_delay_max_s")
    if sum(config.lane_weights) > 100 or config.lane_burst > 99:
        raise InvalidConfig("lane_weights: at most 100 together; lane_burst: at most 99")
    if not config.data_dir.strip() or "\0" in config.data_dir:
        raise InvalidConfig("data_dir: must name a folder")
    if config.metrics is not None:
        metrics_address(config.metrics)
    if config.app is not None and not _is_app_path(config.app):
        raise InvalidConfig(f"app: {config.app!r} is not of the form package.module:attribute")


def _is_app_path(text: str) -> bool:
    module, colon, attribute = text.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))


def metrics_address(value: int | str) -> tuple[str, int]:
    """Host and port of the setting `metrics`: `9100`, `"127.0.0.1:9100"`, `"[::]:9100"`. Raises InvalidConfig."""
    host, _, port = str(value).rpartition(":")
    name = host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host
    is_plain = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65_535
    if not is_plain or (":" in name) != (name != host) or (str(value).startswith(":")):
        raise InvalidConfig(
            f'metrics: {value!r} is neither a port from 0 to 65535 nor "HOST:PORT"; a port alone is one of 127.0.0.1, '
            '"0.0.0.0:9100" serves every address of this machine'
        )
    return name or "127.0.0.1", int(port)


def share_metrics_in(folder: Path) -> None:
    """Where prometheus-client keeps the files that processes share: it asks the environment, and nothing else."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)


def traces_are_wanted(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the environment names a receiver of OpenTelemetry traces, by the standard's variables."""
    environ = os.environ if environ is None else environ
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    return any(environ.get(name) for name in names) and not is_off


def user_runtime_dir() -> str:
    """The user's private folder for sockets as the session manager names it; empty where there is none."""
    return os.environ.get("XDG_RUNTIME_DIR", "")


class ServiceManagerAddress(NamedTuple):
    """Where a service manager listens for sd_notify, and within how many µs it wants to hear that we live."""

    socket: str
    watchdog_us: int | None


def service_manager(environ: Mapping[str, str] | None = None) -> ServiceManagerAddress | None:
    """The service manager that started this very process, as its environment tells; None without one."""
    environ = os.environ if environ is None else environ
    address = environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return None
    period = environ.get("WATCHDOG_USEC", "")
    is_meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return ServiceManagerAddress(address, int(period) if period.isdigit() and int(period) and is_meant else None)


def is_plain_terminal() -> bool:
    """Whether the user wants text without colours, by the two signs that programs agree on."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def setting_choices(name: str) -> tuple[str, ...]:
    """The closed list of values of a setting, for command-line help; empty when it is open."""
    wanted = next(f.type for f in msgspec.structs.fields(Config) if f.name == name)
    return tuple(str(choice) for choice in get_args(wanted)) if getattr(wanted, "__origin__", None) is Literal else ()
