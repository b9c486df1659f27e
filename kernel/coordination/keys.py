"""The only builder of Redis keys and channel names.

Every name is `wk1:{<namespace>}:<rest>`. `wk1` is the layout version: a change of what a key holds changes the
prefix, so that releases with different layouts never read each other's keys (fpr-lua-versions); Redis is
disposable, the new prefix is filled again from the store. The braces are a cluster's hash tag: all keys of a
namespace, hence all keys of one script, lie in one slot (dc-lua-keys). A namespace is checked against a strict
pattern and no other text from outside enters a key, so no id can reach another key (A39).
"""

from __future__ import annotations

from kernel.ids import check_name
from lua import Script

LAYOUT = "wk1"
LANES = 4


class Keys:
    """The names of one namespace, ready to send. Raises InvalidName for a namespace outside the name pattern."""

    __slots__ = ("_by_name", "lane_state", "lanes", "namespace", "wakeup_channel")

    def __init__(self, namespace: str, *, layout: str = LAYOUT) -> None:
        self.namespace = check_name(namespace, "namespace")
        prefix = f"{check_name(layout, 'layout')}:{{{namespace}}}:"
        self.lanes = tuple(f"{prefix}lane:{lane}".encode() for lane in range(LANES))
        """The four ready queues, lane 0 first (lane-four)."""
        self.lane_state = f"{prefix}lane_state".encode()
        """Epoch, burst window and rotation cursor of the lanes (lane-shared-state)."""
        self.wakeup_channel = f"{prefix}wakeup".encode()
        """The channel on which a push tells sleeping workers; it is no key."""
        self._by_name = {f"lane_{lane}": key for lane, key in enumerate(self.lanes)}
        self._by_name["lane_state"] = self.lane_state

    def of(self, script: Script) -> tuple[bytes, ...]:
        """The keys that the contract of `script` names, in its order. A name not built here is a KeyError."""
        return tuple(self._by_name[name] for name in script.keys)

    def permanent(self) -> frozenset[bytes]:
        """The keys that live without a time to live; all others must have one."""
        return frozenset((*self.lanes, self.lane_state))
