"""The engine: how a workflow moves from its insert to its one end.

Facts     `workflow_instances` (one row per biz_key, for ever) and `workflow_definitions` (versions seen alive)
Verbs     claim · begin · complete · suspend · yield · retry · skip · fail · finish · release · renew · activate
Rule 1    Redis recommends a candidate; one conditional write in the durable store grants it.
Rule 2    only the holder of the current claim_token advances an instance; whoever misses a write stops.

    worker      one loop: sweeps when their time has come, then slots, then sleep until something is due
    dispatcher  the other loop: the intents of business objects, and the sweeps, more often
    outbox      which intents to look at: what Redis says is due, and the scan beneath
    registering one intent from its lease to its end (with intent_lease and bad_intents)
    scheduler   fills free slots: take a slot, pop candidates, claim, hand over
    takeover    a candidate becomes a claim, or says why not and when it is worth another try
    execution   one claim from its taking to its end: waves of ready steps, each outcome committed
    readiness   which steps may run, and where an instance rests when none may (pure)
    invoke      the single entry into business code: timeouts, panics, async
    outcomes    what a value or an error means for its step (pure)
    entering    the writes before an invocation: begun, refused a permit, or taken back
    permits     the places of this process: asked for, renewed, given back, handed on
    claim_permits   those of one claim, and whether a workflow may be claimed because a place is there
    activation  due waits are woken
    pausing     a step that is to be entered again: what it waits for, and the write that says so
    ending      prepare and the finalizers
    commit      a transition under a claim, whatever the connection does
    lease       renewal on its own thread, and the fence that ends the right to act
    sweeps      the net beneath: lost hints, due waits, dead owners, versions without a worker

A pass is a function that ends. Threads, timers and events start only through `ports.Runner`; everything that blocks
goes through a port; two passes share no mutable state between two port calls (DECISIONS detail 22). Nothing here
imports a store's driver or Redis.
"""
