"""The live-summary story of `kernel-supervisor demo --subscribers`: N users, one show, one recording, N deliveries.

A tree runs `asr_demo.show_app`; `live_story` plays the world outside; here a run begins and ends, and is reported.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from asr_demo import model
from asr_demo.asr_tasks import TaskTable
from asr_demo.audience import closing_grid, shares
from asr_demo.audience_run import AudienceRun, Orders
from asr_demo.ledger import Ledger
from asr_demo.live_page import announce, stay
from asr_demo.live_story import Story
from asr_demo.live_tree import Tree
from asr_demo.receiver import Receiver
from asr_demo.screen import aligned, open_screen, show_result, visible
from kernel import SystemClock
from kernel.config import Config


def drive(config: Config, folder: Path, orders: Orders, *, quiet: bool) -> AudienceRun:
    """Run the story in `folder`, which the tree of `config` uses."""
    run = AudienceRun(orders, started_s=time.monotonic())
    with open_screen(quiet_terminal=quiet) as screen, closing(Ledger(folder)) as ledger:
        screen.say(f"{orders.subscribers} subscribers, recording {orders.recording.name}; store and log in {folder}")
        if orders.seed is not None:
            screen.say(f"chaos: seed {orders.seed} (--chaos --seed {orders.seed} strikes in the same order)")
        with Tree(config) as tree:
            announce(tree.session, orders.page, "/", screen)
            try:
                Story(tree, folder, run, ledger, screen).play()
            finally:
                model.answer(folder)  # whatever happened: no thread of a worker shall wait for us
            stay(tree.session, orders.page, screen)
        # The tree has ended: what the ledger, the speech service and the receiver counted is final.
        _count(run, folder, ledger)
        fared = shares(dict(sorted(run.summaries.items())), ledger.entries(), tree.names, SystemClock().wall_ms())
        for line in aligned(closing_grid(fared)):
            screen.say(line)
    return run


def _count(run: AudienceRun, folder: Path, ledger: Ledger) -> None:
    run.step_runs = len(ledger.entries())
    run.refusals = ledger.refusals()
    with closing(TaskTable(folder)) as table:
        stats = table.stats()
    run.asr_submits = stats.asr_submits
    run.asr_submit_calls = stats.asr_submit_calls
    run.recognitions = stats.recognitions
    with closing(Receiver(folder)) as receiver:
        run.received = receiver.received()


def show(run: AudienceRun, *, as_json: bool) -> bool:
    """Print what came of it; whether all is well."""
    report = run.report()
    ok = show_result(report, as_json=as_json)
    if as_json:
        return ok
    print(
        f"\n{report['status']} in {report['seconds']:.1f} s: {report['completed']} of {report['workflows']} workflows "
        f"({run.orders.subscribers} summaries, the observer, the fan-out), {report['step_runs']} step entries"
    )
    print(
        f"signals: {report['signals']}; tasks at the speech service: {report['asr_submits']}, recordings recognised: "
        f"{report['recognitions']}; deliveries: {report['deliveries']}, of them duplicates: "
        f"{report['duplicate_deliveries']}; late writes refused: {report['stale_writes_refused']}"
    )
    if run.killed:
        print(
            f"processes killed: {len(run.killed)}, times that Redis was emptied: {run.wipes}, "
            f"steps taken over: {report['takeovers']}, calls repeated at the receiver: {report['repeated_calls']}"
        )
    if report["error"]:
        print(f"error: {visible(report['error'])}")
    return ok
