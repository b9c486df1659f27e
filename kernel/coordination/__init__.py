"""Coordination through Redis: fast, disposable, and never the last word (invariant 3).

keys builds every name; endpoint knows where the server is; scripts calls the Lua of `lua/` within a time limit and
behind the breaker; lanes are the four ready queues, and lane_sample tells people what is taken from them;
dispatch_index says which intents are due; permits count the calls to resources; streams hold what clients see; wakeup
shortens the sleep of those who wait. Only kernel errors leave this package: CoordinationUnavailable (go on from the
store) and CoordinationRejected.
"""

from kernel.coordination.breaker import BootClock, CircuitBreaker
from kernel.coordination.dispatch_index import DispatchIndex
from kernel.coordination.endpoint import Connector, RedisEndpoint, parse_redis_url
from kernel.coordination.keys import Keys
from kernel.coordination.lanes import LaneEntry, LanePolicy, LaneReport, Lanes, LaneStats, Popped, PushCount
from kernel.coordination.permits import Permits
from kernel.coordination.scripts import BoundScript, ScriptRunner
from kernel.coordination.streams import Streams, StreamTerms
from kernel.coordination.wakeup import WakeupListener
from kernel.permit_words import Granted, Owner, Permit, PermitStats, Refused, Renewal

__all__ = [
    "BootClock",
    "BoundScript",
    "CircuitBreaker",
    "Connector",
    "DispatchIndex",
    "Granted",
    "Keys",
    "LaneEntry",
    "LanePolicy",
    "LaneReport",
    "LaneStats",
    "Lanes",
    "Owner",
    "Permit",
    "PermitStats",
    "Permits",
    "Popped",
    "PushCount",
    "RedisEndpoint",
    "Refused",
    "Renewal",
    "ScriptRunner",
    "StreamTerms",
    "Streams",
    "WakeupListener",
    "parse_redis_url",
]
