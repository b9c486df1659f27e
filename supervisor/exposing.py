"""What the supervisor does so that metrics can be served: the role that serves them, and a clean folder for the counts.

It imports nothing of what it prepares: the packages of the extra `metrics` are loaded in the children, after the fork.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path

from kernel.config import Config, metrics_address
from kernel.errors import InvalidConfig
from supervisor.roles import Companion

METRICS_ROLE = "metrics"
METRICS_DIR = "metrics"
"""In the data folder (as kernel.runtime.metering has it)."""
_FUNCTION = "supervisor.metrics_server:metrics"
_PACKAGES = ("prometheus_client", "starlette", "uvicorn")


def lacking_packages() -> str | None:
    """Why metrics can not be served here, in one line; None when they can. Nothing is imported."""
    lacking = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if not lacking:
        return None
    return f"metrics: {', '.join(lacking)} is not installed: pip install 'workflow-kernel[metrics]', or start without"


def metrics_server(config: Config) -> list[Companion]:
    """The one more companion that serves metrics, where they are asked for.

    It ends when workers and dispatchers have: a drain is seen at `/readyz` from its first moment to its last.
    """
    if config.metrics is None:
        return []
    host, port = metrics_address(config.metrics)
    return [Companion(METRICS_ROLE, _FUNCTION, port=port, host=host)]


def clear_counts(config: Config, data_dir: Path, companions: Sequence[Companion]) -> None:
    """Make the folder of what is counted: what an earlier tree has counted is gone. Raises InvalidConfig when it can
    not be made, or the application has a companion of the same name as the one that serves."""
    if config.metrics is None:
        return
    if any(companion.name == METRICS_ROLE for companion in companions):
        raise InvalidConfig(f"metrics: the application has a companion named {METRICS_ROLE!r}; rename it")
    folder = data_dir / METRICS_DIR
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise InvalidConfig(f"metrics: {folder}: {error.strerror or error}") from None
