"""Why is due work not taken? What stands in its way, as far as that is seen from here (ops-where-stuck).

Asked are the supervisor of this data folder, and the table of the versions that workers have reported. Only what is
certain is said: beside a shared store other trees may run, of which nothing is known here.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kernel.config import Config
from kernel.errors import KernelError
from kernel.fingerprint import version_shown
from kernel.observe.views import Snapshot
from kernel.runtime.examining import live_versions
from kernel.store.protocol import Store
from supervisor.ops_lane_verdict import crew_of
from supervisor.ops_shell import Given
from supervisor.ops_tree import Tree

_VERSIONS_MAX = 10_000
_SHOWN = 5

Offered = frozenset[str]
"""Each version that a worker has, as people read it (`kernel.fingerprint.version_shown`)."""


class Hindrance(msgspec.Struct, frozen=True):
    """What stands in the way, to be said at the end of a sentence, and the command line that leads on."""

    text: str
    help: str


def hindrance(
    snapshot: Snapshot, tree: Tree, offered: Callable[[], Offered | None], given: Given, *, is_alone: bool
) -> Hindrance | None:
    """Why nobody takes what is due; None when nothing is seen that hinders. `is_alone`: no other tree uses its store.
    `offered` None: not known."""
    still = standstill(tree, given, is_alone=is_alone)
    if still is not None or tree.status is None:
        return still
    unknown = _version(snapshot, offered())
    if unknown is not None:
        return Hindrance(unknown, given.line("doctor"))
    crew = crew_of(tree.status)
    if crew.slots is not None and crew.busy >= crew.slots:
        busy = f"all {crew.slots} slots are busy" if crew.slots > 1 else "the one slot is busy"
        return Hindrance("; ".join([busy, *crew.unable]), given.line("lanes"))
    return None


def standstill(tree: Tree, given: Given, *, is_alone: bool) -> Hindrance | None:
    """Why nothing at all is taken by this tree; None where something may be."""
    missing = no_tree(tree, given, is_alone=is_alone)
    if missing is not None or tree.status is None:
        return missing
    if tree.is_draining:
        return Hindrance("the tree is draining and takes nothing new", given.line("status"))
    crew = crew_of(tree.status)
    if crew.able == 0:
        return Hindrance("; ".join(crew.unable) or "this tree has no worker", given.line("doctor"))
    return None


def no_tree(tree: Tree, given: Given, *, is_alone: bool) -> Hindrance | None:
    """That no supervisor runs in this folder, or that it does not answer; None for one that runs."""
    if tree.status is not None:
        return None
    if tree.is_silent:
        return Hindrance(f"the supervisor in {tree.folder} does not answer", given.line("doctor"))
    where = f"no supervisor runs in {tree.folder}"
    others = "" if is_alone else ", and of other trees beside this store nothing is known here"
    return Hindrance(where + others, given.line("start", app=True))


def _version(snapshot: Snapshot, offered: Offered | None) -> str | None:
    wanted = version_shown(f"{snapshot.type}@{snapshot.definition_fingerprint}")
    if not offered or wanted in offered:
        return None
    known = sorted(offered)
    same = [version for version in known if version.partition("@")[0] == snapshot.type]
    told = ", ".join((same or known)[:_SHOWN])
    what = f"version {wanted.partition('@')[2]} of {snapshot.type}" if same else f"the type {snapshot.type}"
    return f"no live worker has {what}, offered: {told}"


def offered_versions(store: Store, config: Config, tree: Tree) -> Offered | None:
    """What the workers of this tree say that they have, and, in a store that others share, what any worker has reported
    within three scan periods. None where that is not known, or the store does not answer."""
    if tree.offered is None or config.mongodb_uri is None:
        return tree.offered
    try:
        reported = live_versions(store, config, _VERSIONS_MAX)
    except KernelError:
        return None
    return tree.offered | {version_shown(key) for key in reported}
