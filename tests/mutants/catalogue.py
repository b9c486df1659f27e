"""The mutants of RELIABILITY §10, M1 to M18, as edits of the source text."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "M1",
        "claim_token is dropped from the filter of complete_step",
        (
            Edit(
                "kernel/transitions/steps.py",
                "guards: tuple[Guard, ...] = (*held(claim), Equals(",
                "guards: tuple[Guard, ...] = (*held(claim)[1:], Equals(",
            ),
        ),
        ("tests/conformance/test_claims.py::test_a_step_completes_only_in_a_running_instance_and_only_for_the_token",),
    ),
    Mutant(
        "M2",
        "the status is dropped from the filter of an activation",
        (
            Edit(
                "kernel/transitions/waits.py",
                '        Equals("status", WAITING),\n        Equals(step_field(index, "status"), STEP_WAITING),\n'
                '        Equals(step_field(index, "wait.wait_id"), _wait(',
                '        Equals(step_field(index, "wait.wait_id"), _wait(',
            ),
        ),
        ("tests/engine/test_timers.py::test_an_activation_misses_when_the_workflow_does_not_wait_any_more",),
    ),
    Mutant(
        "M3",
        "start_or_resume looks first and inserts then",
        (
            Edit(
                "kernel/client.py",
                "        try:\n            if isinstance(self._store.insert(insert), Inserted):\n",
                '        if self._store.find(INSTANCES, "biz_key", insert.document["biz_key"]) is None:\n'
                "            self._store.insert(insert)\n            return None\n"
                "        try:\n            if isinstance(self._store.insert(insert), Inserted):\n",
            ),
        ),
        ("tests/engine/test_start_races.py::test_sixteen_callers_make_one_instance_and_one_activation",),
    ),
    Mutant(
        "M4",
        "the claim is released before the checkpoint is saved, in two writes",
        (
            Edit(
                "kernel/engine/execution.py",
                "        return self._rested(self._commit_pause(index, pause, elapsed_ms, rest))\n",
                "        self._commit(partial(transitions.release, self._claim.held, status=RUNNING, rest=rest))\n"
                "        return self._rested(self._commit_pause(index, pause, elapsed_ms, None))\n",
            ),
        ),
        ("tests/engine/test_timers.py::test_one_write_suspends_step_and_workflow_and_ends_the_claim",),
    ),
    Mutant(
        "M5",
        "the inbox is neither asked after a suspension nor swept",
        (
            Edit(
                "kernel/engine/inbox.py",
                "            for index in signal_waits(instance):\n                if self._recheck_step(",
                "            for index in ():\n                if self._recheck_step(",
            ),
            Edit(
                "kernel/engine/inbox_sweep.py",
                "        self._look(rows, repaired or Repaired())\n",
                "",
            ),
        ),
        ("tests/engine/test_signals.py::test_an_early_signal_wakes_the_wait_right_after_its_suspension",),
    ),
    Mutant(
        "M6",
        "a signal is matched without its generation",
        (
            Edit(
                "kernel/engine/matching.py",
                "(wait.signal_type, wait.wait_key, wait.generation) == identity_of(signal)[1:]",
                "(wait.signal_type, wait.wait_key) == identity_of(signal)[1:3]",
            ),
        ),
        ("tests/engine/test_signals.py",),
    ),
    Mutant(
        "M7",
        "a replay keeps the checkpoint of the failed step",
        (
            Edit(
                "kernel/transitions/start.py",
                "fresh = StepRecord(name=step.name, last_signal_id=step.last_signal_id)",
                "fresh = StepRecord(name=step.name, last_signal_id=step.last_signal_id, checkpoint=step.checkpoint)",
            ),
        ),
        ("tests/engine/test_replay.py",),
    ),
    Mutant(
        "M8",
        "a sleep does not roll the attempt back",
        (Edit("kernel/transitions/waits.py", '        Add(step_field(index, "attempt"), -1),\n', ""),),
        ("tests/engine/test_timers.py::test_twenty_polls_are_one_attempt_and_cost_no_retry",),
    ),
    Mutant(
        "M9",
        "the filter of a claim asks the clock of the client",
        (
            Edit(
                "kernel/store/mongo.py",
                '_NO_ID = {"_id": 0}\n',
                '_NO_ID = {"_id": 0}\n\n\n'
                "def _client_now(part, now):\n"
                "    if isinstance(part, dict):\n"
                "        return {name: _client_now(inner, now) for name, inner in part.items()}\n"
                "    if isinstance(part, list):\n"
                "        return [_client_now(inner, now) for inner in part]\n"
                '    return now if part == "$$NOW" else part\n',
            ),
            Edit(
                "kernel/store/mongo.py",
                "        write = write_of(table, transition)\n",
                "        write = write_of(table, transition)\n"
                "        import datetime\n\n"
                "        now_s = self._server_clock._clock.wall_ms() / 1000\n"
                "        now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)\n"
                "        write = write._replace(filter=_client_now(write.filter, now))\n",
            ),
        ),
        (
            "tests/conformance/test_mongo_store.py::test_a_worker_with_a_wrong_clock_neither_steals_a_lease_nor_takes_a_longer_one",
        ),
    ),
    Mutant(
        "M10",
        "a permit is released for whoever holds it",
        (
            Edit(
                "lua/v1/permit_release.lua",
                "if owners[1] then freed = call('ZREM', KEYS[1], unpack(owners)) end\n",
                "for _, held in ipairs(owners[1] and call('ZRANGE', KEYS[1], 0, -1) or {}) do\n"
                "  for _, owner in ipairs(owners) do\n"
                "    local pair = '^[^\\31]+\\31[^\\31]+'\n"
                "    if string.match(held, pair) == string.match(owner, pair) then\n"
                "      freed = freed + call('ZREM', KEYS[1], held)\n    end\n  end\nend\n",
            ),
        ),
        (
            "tests/lua_scripts/test_permit_hold.py::test_the_late_release_of_an_old_claim_frees_nothing_of_the_new_owner",
        ),
    ),
    Mutant(
        "M11",
        "a pop does not look at the due time",
        (
            Edit("lua/v1/lane_pop.lua", "  if score and tonumber(score) <= now then\n", "  if score then\n"),
            Edit(
                "lua/v1/lane_pop.lua",
                "    while got > 0 and tonumber(found[2 * got]) > now do got = got - 1 end\n",
                "",
            ),
        ),
        ("tests/lua_scripts/test_lane_pop.py",),
    ),
    Mutant(
        "M12",
        "a burst window is never closed",
        (
            Edit("lua/v1/lane_pop.lua", "then after = after - 101 elseif", "then after = after - 1 elseif"),
            Edit("lua/v1/lane_pop.lua", "        burst = burst - got\n", ""),
        ),
        ("tests/lua_scripts/test_lane_pop.py",),
    ),
    Mutant(
        "M13",
        "a stream append does not look at its request",
        (
            Edit("lua/v1/stream_append.lua", "  if last == number then return tonumber(offset) end\n", ""),
            Edit("lua/v1/stream_append.lua", "  if last > number then return 'request' end\n", ""),
        ),
        ("tests/lua_scripts/test_stream_append.py",),
    ),
    Mutant(
        "M14",
        "a snapshot is stored although the one that is there has a higher revision",
        (
            Edit(
                "kernel/store/sqlite_rows.py",
                "{changes} WHERE {quoted(table.name)}.{quoted(newer_by)} <= excluded.{quoted(newer_by)}",
                "{changes}",
            ),
            Edit(
                "kernel/store/memory_projection.py",
                "if before is not None and msgspec.msgpack.decode(before)[REVISION] > document[REVISION]:",
                "if before is None and False:",
            ),
            Edit(
                "kernel/store/mongo_compile.py",
                '    found.guard(REVISION, {"$lte": _number(REVISION, document[REVISION])})\n',
                "",
            ),
        ),
        ("tests/conformance/test_observe_rows.py::test_a_snapshot_never_goes_back_to_an_older_revision",),
    ),
    Mutant(
        "M15",
        "a priority may go down",
        (
            Edit("kernel/client.py", "if lane >= instance.business_priority or instance.status", "if instance.status"),
            Edit(
                "kernel/transitions/start.py",
                '        (AtLeast("business_priority", priority + 1),),\n',
                "        (),\n",
            ),
        ),
        ("tests/engine/test_start.py::test_priority_only_rises",),
    ),
    Mutant(
        "M16",
        "the thread that renews claims asks the queue first",
        (
            Edit(
                "kernel/runtime/assembly.py",
                "Renewals(store, clock, runner, settings)",
                "Renewals(store, clock, runner, settings, queue)",
            ),
            Edit(
                "kernel/engine/lease.py",
                "runner: Runner, settings: Settings) -> None:\n",
                "runner: Runner, settings: Settings, queue=None) -> None:\n        self._queue = queue\n",
            ),
            Edit(
                "kernel/engine/lease.py",
                "        self.passes += 1\n",
                "        self.passes += 1\n        if self._queue is not None:\n            self._queue.push([])\n",
            ),
        ),
        ("tests/engine/test_renewal.py::test_a_queue_that_hangs_costs_no_lease",),
    ),
    Mutant(
        "M17",
        "a scan for work does not go on behind a page of rows that nobody here can run",
        (
            Edit(
                "kernel/engine/sweeps.py",
                "                self._after = (rows[-1][3], rows[-1][0])\n",
                "                self._after = None\n",
            ),
        ),
        ("tests/engine/test_scheduling.py::test_a_scan_reads_bounded_pages_and_the_next_one_goes_on_where_it_stopped",),
    ),
    Mutant(
        "M18",
        "a child that can not be watched is forgotten",
        (
            Edit(
                "supervisor/forking.py",
                "        os.kill(pid, signal.SIGKILL)\n        os.waitpid(pid, 0)\n        raise\n",
                "        raise\n",
            ),
        ),
        ("tests/process/test_restart.py::test_a_supervisor_out_of_descriptors_loses_no_child_and_recovers",),
    ),
)
