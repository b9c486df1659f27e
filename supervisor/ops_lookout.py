"""From where `workflow show` looks at what stands around a workflow: store, places, sources and tree, opened once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from kernel.clock import SystemClock
from kernel.config import Config
from kernel.coordination.permits import Permits
from kernel.dispatch import DispatchSource
from kernel.observe.views import Snapshot
from kernel.runtime import embedded_redis_url, load_app, open_permits, open_store
from supervisor.ops_dispatch import open_dispatch_sources
from supervisor.ops_hindrance import Hindrance, hindrance, no_tree, offered_versions
from supervisor.ops_now import Beside, Holder, is_due
from supervisor.ops_shell import APP_UNKNOWN, Given, data_folder, patient
from supervisor.ops_surroundings import Surroundings, look_around
from supervisor.ops_workers import Workers


class Lookout:
    """What it opens is closed when `until` ends. `given`: the options of the command, which its hints repeat."""

    def __init__(self, config: Config, given: Given, until: ExitStack) -> None:
        self._config = config
        self._given = given
        self._until = until
        folder, clock = data_folder(config), SystemClock()
        self._store = open_store(config, folder, clock, prepare=False)
        until.callback(self._store.close)
        opened = open_permits(patient(config), config.redis_url or embedded_redis_url(folder), clock)
        self._permits: Permits | None = None
        if opened is not None:
            self._permits = opened[0]
            until.callback(opened[1].close)
        self._opened: Sequence[DispatchSource] | None = None

    def look(self, seen: Snapshot, now_ms: int) -> tuple[Surroundings, Beside]:
        """What stands around it, and what is to be known for reading its snapshot. The tree is asked once."""
        workers = Workers(self._config)
        app = None if self._config.app is not None else workers.tree.app
        around = look_around(seen, self._store, None if self._config.app is None else self._sources, self._permits, app)
        given = self._given
        if self._config.app is None:
            given = given._replace(app=app or APP_UNKNOWN)
        holder = workers.holder(seen)
        beside = Beside(
            holder=holder,
            hindrance=self._hindrance(seen, workers, around, holder, now_ms, given),
            is_redis_away=around.is_redis_away,
            names=workers.names(seen),
            given=given,
        )
        return around, beside

    def _sources(self) -> Sequence[DispatchSource]:
        if self._opened is None:
            self._opened = open_dispatch_sources(self._config, load_app(self._config.app), self._until)
        return self._opened

    def _hindrance(
        self, seen: Snapshot, workers: Workers, around: Surroundings, holder: Holder, now_ms: int, given: Given
    ) -> Hindrance | None:
        """Why nobody takes what is due. Where no tree runs nobody gives out places, or takes over from a dead worker;
        and while Redis is away what the workers do is not the reason that no place is given."""
        tree, is_alone = workers.tree, workers.owns_store
        due = is_due(seen.waiting, seen.waiting_until, now_ms, lease_until=seen.lease_until, holder=holder)
        if due and not around.is_redis_away:
            return hindrance(
                seen, tree, lambda: offered_versions(self._store, self._config, tree), given, is_alone=is_alone
            )
        if holder == "gone" or seen.waiting == "permit":
            return no_tree(tree, given, is_alone=is_alone)
        return None
