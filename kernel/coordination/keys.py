"""The only builder of Redis keys and channel names.

Every name is `wk1:{<namespace>}:<rest>`. `wk1` is the layout version: a change of what a key holds changes the
prefix, so that releases with different layouts never read each other's keys (fpr-lua-versions); Redis is
disposable, the new prefix is filled again from the store. The braces are a cluster's hash tag: all keys of a
namespace, hence all keys of one script, lie in one slot (dc-lua-keys). A namespace is checked against a strict
pattern, and other text from outside enters a key only escaped or as a hash, so no id can reach another key (A39).
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from kernel.ids import check_name, check_resource
from kernel.stream_words import StreamId
from lua import Script

LAYOUT = "wk1"
LANES = 4
_STREAM_PARTS = ("frames", "generation", "state", "terminal", "watch")
_ESCAPED_CHARACTERS_MAX = 96
_PERMIT_PARTS = ("holders", "starts", "reserved", "waiting", "line")


class Keys:
    """The names of one namespace, ready to send. Raises InvalidName for a namespace outside the name pattern."""

    __slots__ = (
        "_by_name", "_prefix", "dispatch_channel", "lane_state", "lanes", "namespace", "stream_channel",
        "wakeup_channel",
    )  # fmt: skip

    def __init__(self, namespace: str, *, layout: str = LAYOUT) -> None:
        self.namespace = check_name(namespace, "namespace")
        self._prefix = prefix = f"{check_name(layout, 'layout')}:{{{namespace}}}:"
        self.lanes = tuple(f"{prefix}lane:{lane}".encode() for lane in range(LANES))
        """The four ready queues, lane 0 first (lane-four)."""
        self.lane_state = f"{prefix}lane_state".encode()
        """Epoch, burst window and rotation cursor of the lanes (lane-shared-state)."""
        self.wakeup_channel = f"{prefix}wakeup".encode()
        """The channel on which a push tells sleeping workers; it is no key."""
        self.dispatch_channel = f"{prefix}dispatch_wakeup".encode()
        """The channel on which a noted intent tells sleeping dispatchers, of whatever source; it is no key."""
        self.stream_channel = f"{prefix}stream_wakeup".encode()
        """The channel on which a change of a stream that somebody watches is told; it is no key."""
        self._by_name = {f"lane_{lane}": key for lane, key in enumerate(self.lanes)}
        self._by_name["lane_state"] = self.lane_state

    def dispatch(self, source: str) -> bytes:
        """When the objects of a dispatch source become due. Raises InvalidName for a source outside the pattern."""
        return f"{self._prefix}dispatch:{check_name(source, 'source')}".encode()

    def dispatch_scan(self, source: str) -> bytes:
        """Who scans a dispatch source at present."""
        return f"{self._prefix}dispatch_scan:{check_name(source, 'source')}".encode()

    def permit(self, resource: str) -> dict[str, bytes]:
        """The keys of one resource by their names in contracts. Raises InvalidName or InvalidId (check_resource).

        What follows the colon of `tenant_work:acme` is any text: only its hash enters a key, behind a dot, which no
        name holds, so that no resource reaches the keys of another.
        """
        name, colon, key = check_resource(resource, "resource").partition(":")
        place = f"{name}.{hashlib.sha256(key.encode()).hexdigest()[:32]}" if colon else name
        return {f"permit_{part}": f"{self._prefix}permit:{place}:{part}".encode() for part in _PERMIT_PARTS}

    def stream(self, stream: StreamId) -> dict[str, bytes]:
        """The keys of one stream by their names in contracts: object, workflow and round stand in each of them, so that
        who lacks one of the three reaches nothing (id-stream-identity).

        What a name may not hold is escaped as in a URL, which no two texts share; a text that gets longer than 96
        characters that way stands as its hash, behind a character that no escaped text holds.
        """
        place = ":".join(_escaped(part) for part in (stream.object_id, stream.workflow_id, stream.round))
        return {f"stream_{part}": f"{self._prefix}stream:{place}:{part}".encode() for part in _STREAM_PARTS}

    def of(
        self, script: Script, source: str | None = None, *, resource: str | None = None, stream: StreamId | None = None
    ) -> tuple[bytes, ...]:
        """The keys that the contract of `script` names, in its order. A name not built here is a KeyError; those of a
        dispatch source, a resource or a stream are built only for one."""
        known = self._by_name
        if stream is not None:
            known = known | self.stream(stream)
        if resource is not None:
            known = known | self.permit(resource)
        if source is not None:
            known = known | {"dispatch": self.dispatch(source), "dispatch_scan": self.dispatch_scan(source)}
        return tuple(known[name] for name in script.keys)

    def permanent(self) -> frozenset[bytes]:
        """The keys that live without a time to live; all others must have one."""
        return frozenset((*self.lanes, self.lane_state))


def _escaped(text: str) -> str:
    escaped = quote(text, safe="").replace("~", "%7E")
    if len(escaped) <= _ESCAPED_CHARACTERS_MAX:
        return escaped
    return "~" + hashlib.sha256(text.encode()).hexdigest()[:32]
