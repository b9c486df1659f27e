"""Opening what operators read: the observations of a tree, and their repair. Only the operator's views import this."""

from __future__ import annotations

import os
from pathlib import Path

from kernel.clock import Clock
from kernel.config import Config
from kernel.errors import KernelError, StoreUnavailable
from kernel.observe.reading import Observations
from kernel.observe.repair import Repair
from kernel.runtime.observer import OBSERVE_FILE, open_observation_store
from kernel.runtime.opening import has_file, open_store
from kernel.store.projection import ProjectionStore

READ_TIMEOUT_MS = 10_000
"""Counts of many snapshots take longer than any write."""


def open_observations(
    config: Config, data_dir: str | os.PathLike[str], clock: Clock, *, prepare: bool = True
) -> Observations:
    """The reader of the observations; `close` it. Raises StoreUnavailable, SchemaMismatch or InvalidConfig.

    Without `prepare` nothing is made: where nothing was ever observed (`is_observed`) that is told, with it there is
    nothing to see.
    """
    return Observations(_opened(config, data_dir, clock, prepare=prepare))


def is_observed(config: Config, data_dir: str | os.PathLike[str]) -> bool:
    """Whether a tree has ever observed anything here, as far as that can be told from the data folder."""
    embedded = config.observe_mongodb_uri is None and config.mongodb_uri is None
    return not embedded or has_file(data_dir, OBSERVE_FILE)


def open_repair(config: Config, data_dir: str | os.PathLike[str], clock: Clock) -> Repair:
    """What rebuilds observations from the instances; `close` it. Raises as `open_observations`."""
    observations = _opened(config, data_dir, clock, prepare=True)
    try:
        instances = open_store(config, Path(data_dir), clock, prepare=False)
    except KernelError:
        observations.close()
        raise
    return Repair(instances, observations, round(config.observe_keep_s * 1000))


def _opened(config: Config, data_dir: str | os.PathLike[str], clock: Clock, *, prepare: bool) -> ProjectionStore:
    if not prepare and not is_observed(config, data_dir):
        raise StoreUnavailable(f"observations {Path(data_dir) / OBSERVE_FILE}: nothing was observed here yet")
    store = open_observation_store(config, data_dir, clock, timeout_ms=READ_TIMEOUT_MS)
    try:
        if prepare:
            store.prepare()
    except KernelError:
        store.close()
        raise
    return store
