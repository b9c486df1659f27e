"""The only place where the kernel is put together: config → store, coordination, engine, roles (ARCHITECTURE §2).

| file | noun |
| --- | --- |
| `opening` | one connection or file each: the application, the store, the lanes, a publisher's client |
| `publishing` | what a web process or a cron job works with |
| `examining` | how the stores are, without a write: for `doctor` |
| `assembly` | the engine of one process, put together and not yet running |
| `link` | what a child's connection to its supervisor offers |
| `roles` | worker, dispatcher, probe: what a supervisor's children run |
| `releasing` | acting on a proof of death, and the child that does nothing else |

Everything that holds a connection or a thread is made here, after the fork (dc-fork-safety).
"""

from kernel.runtime.assembly import Engine
from kernel.runtime.link import Link, Order
from kernel.runtime.opening import (
    OBJECTS_FILE,
    RUN_FILE,
    STORE_FILE,
    NoQueue,
    embedded_redis_url,
    load_app,
    open_announcer,
    open_client,
    open_lanes,
    open_objects,
    open_permits,
    open_sources,
    open_store,
    open_streams,
)
from kernel.runtime.publishing import Publisher, open_publisher
from kernel.runtime.releasing import releaser
from kernel.runtime.roles import dispatcher, probe, worker

__all__ = [
    "OBJECTS_FILE",
    "RUN_FILE",
    "STORE_FILE",
    "Engine",
    "Link",
    "NoQueue",
    "Order",
    "Publisher",
    "dispatcher",
    "embedded_redis_url",
    "load_app",
    "open_announcer",
    "open_client",
    "open_lanes",
    "open_objects",
    "open_permits",
    "open_publisher",
    "open_sources",
    "open_store",
    "open_streams",
    "probe",
    "releaser",
    "worker",
]
