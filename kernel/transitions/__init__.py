"""Every durable change of an instance, each built by one constructor (ARCHITECTURE §3).

Read this package as the protocol. A constructor takes what its caller has read and decided, and returns a value
of the write vocabulary; it reads nothing and decides nothing that the guards do not check again in the store.

| file | transitions | who |
| --- | --- | --- |
| `start` | create, replay_failed, fresh_run, raise_priority | publishers |
| `claims` | claim, claim_alone, take_over, claim_handed_over, renew, release | workers |
| `claims` | release_dead, park_dead, park, unpark | dispatchers, workers, operators |
| `steps` | begin_step, unbegin, complete_step, retry_step, skip_step, fail_step, yield_step | the holder |
| `steps` | defer_for_permit, mark_stuck | the holder |
| `waits` | suspend_step, activate_own | the holder |
| `waits` | activate_timer, activate_signal | any process |
| `ends` | enter_failing, finish_completed, finish_failed, finish_canceled, defer_finalizer | the holder |
| `ends` | supersede | anybody |
| `deferral` | defer_for_fingerprint, release_deferred | dispatchers |
| `inbox` | receive_signal, mark_matched | whoever delivers a signal; any process |
| `inbox` | forget_matched, forget_pending | any process |
| `limits` | first_limit, set_limit, unset_limit, declare_limit | operators; a worker that starts |
| `dispatch` | accept_object, embed_intent, new_round | the request side, on a business object |
| `dispatch` | withdraw_dispatch | the object's owner, whoever holds the lease |
| `dispatch` | confirm_dispatch | the request side from pending, a dispatcher from its lease |
| `dispatch` | claim_dispatch, renew_dispatch, release_dispatch, refuse_dispatch | dispatchers |
| `dispatch` | update_object | activities and finalizers, for their round |

Transitions of an instance without a claim token in their guard are: create, replay_failed, fresh_run, supersede,
raise_priority, activate_timer, activate_signal, release_dead (it names the dead owner's), park, unpark and the
deferrals (S3).
`renew` and `raise_priority` carry no commit_id: an unknown renewal counts as not renewed (DECISIONS detail 3).
"""

from kernel.transitions.claims import (
    claim,
    claim_alone,
    claim_handed_over,
    park,
    park_dead,
    release,
    release_dead,
    renew,
    take_over,
    unpark,
)
from kernel.transitions.deferral import defer_for_fingerprint, release_deferred
from kernel.transitions.dispatch import (
    accept_object,
    claim_dispatch,
    confirm_dispatch,
    embed_intent,
    new_round,
    refuse_dispatch,
    release_dispatch,
    renew_dispatch,
    update_object,
    withdraw_dispatch,
)
from kernel.transitions.ends import (
    defer_finalizer,
    enter_failing,
    finish_canceled,
    finish_completed,
    finish_failed,
    supersede,
)
from kernel.transitions.inbox import forget_matched, forget_pending, mark_matched, receive_signal
from kernel.transitions.limits import declare_limit, first_limit, set_limit, unset_limit
from kernel.transitions.parts import Held, Rest
from kernel.transitions.start import create, fresh_run, raise_priority, replay_failed
from kernel.transitions.steps import (
    begin_step,
    complete_step,
    defer_for_permit,
    fail_step,
    mark_stuck,
    retry_step,
    skip_step,
    unbegin,
    yield_step,
)
from kernel.transitions.waits import activate_own, activate_signal, activate_timer, suspend_step

__all__ = [
    "Held",
    "Rest",
    "accept_object",
    "activate_own",
    "activate_signal",
    "activate_timer",
    "begin_step",
    "claim",
    "claim_alone",
    "claim_dispatch",
    "claim_handed_over",
    "complete_step",
    "confirm_dispatch",
    "create",
    "declare_limit",
    "defer_finalizer",
    "defer_for_fingerprint",
    "defer_for_permit",
    "embed_intent",
    "enter_failing",
    "fail_step",
    "finish_canceled",
    "finish_completed",
    "finish_failed",
    "first_limit",
    "forget_matched",
    "forget_pending",
    "fresh_run",
    "mark_matched",
    "mark_stuck",
    "new_round",
    "park",
    "park_dead",
    "raise_priority",
    "receive_signal",
    "refuse_dispatch",
    "release",
    "release_dead",
    "release_deferred",
    "release_dispatch",
    "renew",
    "renew_dispatch",
    "replay_failed",
    "retry_step",
    "set_limit",
    "skip_step",
    "supersede",
    "suspend_step",
    "take_over",
    "unbegin",
    "unpark",
    "unset_limit",
    "update_object",
    "withdraw_dispatch",
    "yield_step",
]
