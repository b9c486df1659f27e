"""What a web process or a cron job works with: the client, the business objects, and the desks of their requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from kernel.business_objects import BusinessObjects
from kernel.client import Client
from kernel.clock import SystemClock
from kernel.closing import Closing
from kernel.config import Config
from kernel.coordination.dispatch_index import Announcer
from kernel.definition import Definition, Plan
from kernel.errors import KernelError
from kernel.objects import Objects
from kernel.requests import Requests
from kernel.runtime.opening import open_announcer, open_client, open_objects


class Publisher(Closing):
    """Everything that accepts and starts work and runs none of it. One per process, for all of its threads."""

    def __init__(
        self,
        client: Client,
        objects: Mapping[str, BusinessObjects],
        announcer: Announcer,
        closers: Sequence[Callable[[], None]],
    ) -> None:
        super().__init__(closers)
        self.client = client
        self.objects = objects
        """The opened business objects by the name of their declaration."""
        self._announcer = announcer

    def requests(
        self,
        objects: Objects,
        plan: Plan | Definition,
        *,
        priority: int | str = "realtime",
        retry_priority: int | str = "async",
    ) -> Requests:
        """The desk where requests for this work arrive; `objects` is one of the declarations that were opened."""
        return Requests(
            self.client,
            self.objects[objects.name],
            plan,
            priority=priority,
            retry_priority=retry_priority,
            announce=self._announcer,
        )


def open_publisher(
    config: Config, data_dir: str | os.PathLike[str], redis_url: str | None, *, objects: Sequence[Objects] = ()
) -> Publisher:
    """Open the client and the business objects of `objects`. Raises as `open_client` and `open_objects`.

    `redis_url` None: nobody is told of new work, and it starts with the next scan. Use it as
    `with open_publisher(…) as publisher`, or close it: it has files or connections of its own.
    """
    client = open_client(config, data_dir, redis_url)
    try:
        opened = open_objects(config, data_dir, objects, SystemClock())
    except KernelError:
        client.close()
        raise
    announcer = open_announcer(config, redis_url)
    closers = [client.close, announcer.close, *(source.close for source in opened.values())]
    return Publisher(client, opened, announcer, closers)
