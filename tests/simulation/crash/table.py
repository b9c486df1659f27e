"""The crash matrix of the specification (RELIABILITY §5): 61 boundaries, and what the next actor must find and do.

For each boundary there are three cells: **a** killed before the call leaves; **b** applied by the server, reply not
read; **c** reply read, next line not run. After each of them S1–S15 hold, and L1 and L2.
"""

from __future__ import annotations

from typing import NamedTuple


class Boundary(NamedTuple):
    """One row: its number, its name, and what follows after a fault at a, b or c."""

    number: str
    name: str
    follows: str


BOUNDARIES = (
    Boundary(
        "01",
        "business object insert with pending dispatch",
        "a: nothing exists, client retries with same idempotency id; b,c: recovery dispatcher starts it",
    ),
    Boundary(
        "02",
        "instance insert (StartOrResume)",
        "a: pending stays; b,c: instance exists, next caller gets the duplicate-key branch and returns it "
        "(never an error, A50, A52)",
    ),
    Boundary(
        "03",
        "duplicate-key branch read",
        "repeat gives the same instance",
    ),
    Boundary(
        "04",
        "replay CAS failed→running (input replaced, failed steps reset, checkpoint cleared)",
        "a: still failed, dispatch still pending f2; b,c: running once; second replay misses; completed "
        "steps untouched",
    ),
    Boundary(
        "05",
        "priority raise",
        "only ever upward; lane index repaired by scan",
    ),
    Boundary(
        "06",
        "ready-lane enqueue",
        "missing index entry found by scan",
    ),
    Boundary(
        "07",
        "wakeup publish",
        "poll covers",
    ),
    Boundary(
        "08",
        "stream reset on activation",
        "old frames invisible by generation or by next reset; never blocks",
    ),
    Boundary(
        "09",
        "ConfirmDispatched pending→dispatched",
        "repeat converges; f2 never overwritten by f1",
    ),
    Boundary(
        "10",
        "RetryFailedWorkflowDispatch CAS",
        "exactly one of two racing rounds installed; f2/pending found by dispatcher",
    ),
    Boundary(
        "11",
        "dispatch ZSET batch pop (100)",
        "all 100 found again by scan; none claimed by the dead process",
    ),
    Boundary(
        "12",
        "dispatch claim pending→processing d1",
        "lease runs out, d2 takes over; d1 writes miss",
    ),
    Boundary(
        "13",
        "dispatch lease renew",
        "lost renew = context cancelled, no confirm",
    ),
    Boundary(
        "14",
        "StartOrResume inside dispatch",
        "as 02–05",
    ),
    Boundary(
        "15",
        "confirm processing→dispatched (f, d)",
        "idempotent; wrong d misses",
    ),
    Boundary(
        "16",
        "release processing→pending with delay",
        "token checked; ZSET rescheduled or found by scan",
    ),
    Boundary(
        "17",
        "low-rate dispatch scan under mutex",
        "mutex holder killed: free after its TTL; mutex wiped by FLUSHALL: two scans at once are harmless",
    ),
    Boundary(
        "18",
        "PopReady",
        "id lost from index, found by scan; never marked failed",
    ),
    Boundary(
        "19",
        "claim CAS",
        "b: token t1 set and nobody knows it → waits out the lease, then t2; attempt not increased",
    ),
    Boundary(
        "20",
        "fingerprint mismatch: defer 1 h with claim",
        "instance unchanged but claimable_time; not counted as failure",
    ),
    Boundary(
        "21",
        "claim renew",
        'b: renewed; worker must treat "unknown" as not renewed for self-fencing',
    ),
    Boundary(
        "22",
        "permit acquire",
        "b: slot held by a dead owner → freed at permit lease; same owner re-acquire must not take two",
    ),
    Boundary(
        "23",
        "permit wait: defer + release claim",
        "one write; attempt unchanged; lane kept",
    ),
    Boundary(
        "24",
        "permit renew",
        "lost permit is noticed; running call is not cut, counted",
    ),
    Boundary(
        "25",
        "permit release",
        "freed at lease end if lost; release by a stale owner removes nothing of the new owner",
    ),
    Boundary(
        "26",
        "step running, attempt+1",
        "running step is re-enterable; attempts count entries",
    ),
    Boundary(
        "27",
        "external submit done, checkpoint not written",
        "the one admitted duplicate window: ≤ 1 extra submit per kill, idempotency key equal on both",
    ),
    Boundary(
        "28",
        "CompleteStep (status + output)",
        "b: step done, next owner goes on; activity not rerun",
    ),
    Boundary(
        "29",
        "retry: step→pending, claim released",
        "one write; budget exact: total entries = 1 + MaxRetry (+ crashes, see 11.2)",
    ),
    Boundary(
        "30",
        "re-enqueue after retry/yield/activation",
        "scan covers",
    ),
    Boundary(
        "31",
        "skip on failure",
        "skipped is terminal for that step",
    ),
    Boundary(
        "32",
        "running→failing",
        "next owner runs FailureFinalizer, never the failed step",
    ),
    Boundary(
        "33",
        "FailureFinalizer business write",
        "idempotent; may run twice",
    ),
    Boundary(
        "34",
        "failing→failed",
        "b: StartOrResume may replay at once; no finalizer after",
    ),
    Boundary(
        "35",
        "SuccessFinalizer",
        "idempotent; fan-out start has a stable biz_key",
    ),
    Boundary(
        "36",
        "running→completed",
        "b: completed; nothing reruns",
    ),
    Boundary(
        "37",
        "terminal frame, snapshot",
        "best effort; reconnecting reader gets the final object",
    ),
    Boundary(
        "38",
        "SuspendClaim for Sleep",
        "checkpoint + wait + release in one write",
    ),
    Boundary(
        "39",
        "SuspendClaim for signal",
        "same",
    ),
    Boundary(
        "40",
        "inbox re-check after suspend",
        "sweep finds pending signal + waiting instance",
    ),
    Boundary(
        "41",
        "Yield",
        "cursor saved, attempt rolled back, claim free",
    ),
    Boundary(
        "42",
        "activity reports canceled",
        "step skipped, workflow canceled, no finalizer",
    ),
    Boundary(
        "43",
        "supersede",
        "waits/claims cleared; later signals do nothing; repeat gives changed=false",
    ),
    Boundary(
        "44",
        "timer / poll-fallback activation",
        "one winner; resume.kind set once",
    ),
    Boundary(
        "45",
        "enqueue after activation",
        "scan",
    ),
    Boundary(
        "46",
        "inbox insert",
        "duplicate id ignored; producer retries until stored",
    ),
    Boundary(
        "47",
        "activation with resume.signal_id",
        "at most one",
    ),
    Boundary(
        "48",
        "inbox match_time",
        "filled later from resume.signal_id; never a second activation",
    ),
    Boundary(
        "49",
        "enqueue + wakeup after signal",
        "scan, poll",
    ),
    Boundary(
        "50",
        "pending-signal sweep",
        "may run in two processes at once",
    ),
    Boundary(
        "51",
        "fan-out page read",
        "cursor unmoved → same page again",
    ),
    Boundary(
        "52",
        "per-subscriber DeliverSignal",
        "same signal_id each time",
    ),
    Boundary(
        "53",
        "Yield with cursor",
        "no subscriber skipped, none activated twice",
    ),
    Boundary(
        "54",
        "stream append",
        "b: frame stored once (request id), offset stable",
    ),
    Boundary(
        "55",
        "terminal frame + reference",
        "nothing may be appended after it",
    ),
    Boundary(
        "56",
        "stream generation reset",
        "reader drops the mixed batch and restarts at 0",
    ),
    Boundary(
        "57",
        "observation batch insert",
        "repeat upserts same keys",
    ),
    Boundary(
        "58",
        "snapshot upsert by revision",
        "older revision never wins",
    ),
    Boundary(
        "59",
        "fork → child ready",
        "child killed before ready counts as a failed start",
    ),
    Boundary(
        "60",
        "drain → exit",
        "SIGKILL in the middle of SIGTERM drain at 20 random offsets",
    ),
    Boundary(
        "61",
        "respawn",
        "no double child for one slot; back-off applies",
    ),
)
