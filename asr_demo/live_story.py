"""The live-summary story as the world outside plays it, on a tree that knows nothing of a story.

The show is announced, users subscribe, the broadcast ends, and everybody's summary is waited for; one user's first
round fails on the way (`live_failed_round`). What happens is told line by line.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from asr_demo.audience import operator_line, share, standing, standing_grid, standing_line
from asr_demo.audience_run import AudienceRun
from asr_demo.holding import held_pid
from asr_demo.ledger import Ledger
from asr_demo.live_chaos import Chaos, drawn
from asr_demo.live_failed_round import FailedRound
from asr_demo.live_tree import Tree
from asr_demo.live_users import Users
from asr_demo.screen import PlainScreen
from asr_demo.summary import STEPS, WAIT_STEP
from asr_demo.timeline import About, Line, Timeline
from kernel import Instance, SystemClock, Unavailable

LIMIT_S = 600.0
LIVE_S, LIVE_MAX_S = 4.0, 30.0
"""How long the show stays live after the last subscription: the least, and the most while not everybody waits yet."""
_LOOK_S, _LOOK_PER_USER_S = 0.1, 0.0015
_LINES_EVERY_S = 1.0
_CLOCK = SystemClock()


class Story:
    """One run, from the announcement to the last delivery."""

    def __init__(self, tree: Tree, folder: Path, run: AudienceRun, ledger: Ledger, screen: PlainScreen) -> None:
        self._tree = tree
        self._folder = folder
        self._run = run
        self._ledger = ledger
        self._screen = screen
        self._users = Users(tree, folder, run.orders.subscribers)
        self._failed_round = FailedRound(self._users, folder, ledger, self._say)
        self._timeline: Timeline | None = None
        self._told: set[tuple[str, str]] = set()
        self._line = ""
        self._pause = threading.Event()
        self._lines_at_s = 0.0
        self._live_since_s: float | None = None
        self._show_has_ended = self._operator_has_looked = self._all_dispatched = False
        seed = run.orders.seed
        users, config = run.orders.subscribers, tree.config
        blows = [] if seed is None else drawn(seed, config.workers, config.dispatchers, users)
        self._chaos = Chaos(blows, tree, self._failed_round.late_writer, time.monotonic())

    def play(self) -> None:
        """Raises SessionFailed when the tree ends by itself; past the limit the run is as it is."""
        users, run = self._users, self._run
        self._failed_round.prepare()
        self._patiently(users.announce)
        self._say(f"the show {users.show.title!r} is live, and its observer looks every second")
        for name in users.names:
            self._patiently(partial(users.subscribe, name))
            self._strike()
        self._live_since_s = time.monotonic()
        self._say(
            f"{len(users.names)} have subscribed: {users.registered} were registered by their request, "
            f"{users.left_to_dispatcher} only accepted, as if the process had died then: the dispatcher goes on"
        )
        while not self._is_over():
            if self._elapsed_s() > LIMIT_S:
                self._say(f"the story did not end within {LIMIT_S:g} s")
                break
            # Reading all of them costs time that the workers need: the more there are, the rarer.
            self._pause.wait(max(_LOOK_S, _LOOK_PER_USER_S * len(users.names)))
            self._strike()
            self._patiently(self._look)
            self._patiently(self._go_on)
        run.ended_s = time.monotonic()
        run.killed += self._chaos.killed
        run.wipes = self._chaos.wipes
        self._patiently(self._conclude)

    def _is_over(self) -> bool:
        instances = self._run.instances
        return (
            len(instances) == self._run.promised
            and all(instance.ended for instance in instances)
            and self._failed_round.is_told
            and self._chaos.is_over
            and self._all_dispatched
        )

    def _patiently(self, act: Callable[[], None]) -> None:
        """A store that does not answer in time has a busy moment: try again, as any web process would."""
        while True:
            try:
                return act()
            except Unavailable as error:
                if self._elapsed_s() > LIMIT_S:
                    raise
                self._say(f"the store did not answer, once more: {error}")
                self._pause.wait(_LOOK_S)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._run.started_s

    def _say(self, text: str) -> None:
        self._screen.say(f"{self._elapsed_s():7.2f} s  {text}")

    # --- looking --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read what may have changed, and tell what is new."""
        run, users = self._run, self._users
        self._tree.children()
        for name in users.names:
            known = run.summaries.get(name)
            if known is None or not known.ended or (name == users.retrying and not self._failed_round.is_told):
                found = users.summary(name)
                if found is not None:
                    run.summaries[name] = found
        fan_out = users.fan_out()
        run.others = [found for found in (users.observer(), fan_out) if found is not None]
        if fan_out is not None:
            self._tell_fan_out(fan_out)
        if users.retrying in run.summaries:
            self._tell_first(run.summaries[users.retrying])
        counts = standing(run.summaries.values(), STEPS)
        self._screen.stands(standing_grid(counts, STEPS, f"live_summary · {self._elapsed_s():.1f} s"))
        line = standing_line(counts, STEPS)
        if line != self._line and time.monotonic() >= self._lines_at_s:
            self._line, self._lines_at_s = line, time.monotonic() + _LINES_EVERY_S
            self._say(line)

    def _tell_first(self, instance: Instance) -> None:
        """The first user is followed step by step; of the polls only the first is told."""
        name = self._users.retrying
        there = self._users.subscription(name)
        if self._timeline is None and there is not None:
            about = About(name, there.fencing_token, f"live resource {self._users.show.show_id}")
            self._timeline = Timeline(about, _CLOCK.wall_ms() - round(1000 * self._elapsed_s()))
        if self._timeline is None:
            return
        self._timeline.learn(self._tree.titles())
        for line in self._timeline.see(instance):
            key = _kind(line)
            if key not in self._told:
                self._told.add(key)
                self._screen.happened([replace(line, step=f"{name} {line.step}".strip())])

    def _tell_fan_out(self, fan_out: Instance) -> None:
        """What leads from the show's end to the subscribers."""
        for status, text in (
            (fan_out.status, "the observer has seen the recording and begun the fan-out"),
            ("completed", "the fan-out has signalled every subscriber"),
        ):
            if status == fan_out.status and ("fan-out", text) not in self._told:
                self._told.add(("fan-out", text))
                self._say(text)

    def _show_operator(self) -> None:
        """What an operator sees of one who waits for the speech service."""
        for name, instance in self._run.summaries.items():
            if instance.steps[instance.step_index("transcribe_audio")].status == "waiting":
                mine = [entry for entry in self._ledger.entries() if entry.workflow_id == instance.workflow_id]
                found = share(instance, name, mine, self._tree.names, _CLOCK.wall_ms())
                self._say(f"an operator's view of {operator_line(instance, found)}")
                self._operator_has_looked = True
                return

    # --- the world outside ----------------------------------------------------------------------------

    def _strike(self) -> None:
        """Chaos, and the one worker that `--kill-worker-at` names."""
        births = self._tree.births
        done = self._chaos.strike(time.monotonic())
        if done is not None:
            self._say(done)
        if self._tree.births != births:
            self._users.reconnect()
        kill_at = self._run.orders.kill_at
        if kill_at is not None and not self._run.killed:
            pid = held_pid(self._folder)
            if pid is not None and pid != self._failed_round.late_writer():
                self._tree.children()
                os.kill(pid, signal.SIGKILL)
                self._run.killed.append(pid)
                self._say(f"SIGKILL: worker pid {pid} in {kill_at}, after its effect and before its commit")

    def _go_on(self) -> None:
        if not self._show_has_ended and self._may_end_show():
            self._users.end_show(self._run.orders.recording)
            self._show_has_ended = True
            self._say("the show has ended, its recording is there")
        if self._show_has_ended and not self._operator_has_looked:
            self._show_operator()
        self._failed_round.go_on(self._run.summaries.get(self._users.retrying))
        self._all_dispatched = self._users.all_dispatched()

    def _may_end_show(self) -> bool:
        """Everybody waits for it by now; not too soon, and not too late when somebody does not."""
        assert self._live_since_s is not None
        live_s = time.monotonic() - self._live_since_s
        waiting = standing(self._run.summaries.values(), STEPS)[WAIT_STEP, "waiting"]
        return live_s > LIVE_MAX_S or (live_s > LIVE_S and waiting == len(self._users.names))

    def _conclude(self) -> None:
        run, users = self._run, self._users
        fan_out = users.fan_out()
        if fan_out is not None and fan_out.status == "completed":
            run.signals = users.signals()
        there = users.subscription(users.retrying)
        if there is not None:
            segments = there.fields.get("segments")
            run.transcript = " ".join(segments) if segments else None
            run.summary = there.fields.get("summary")


def _kind(line: Line) -> tuple[str, str]:
    """What makes a line news: of a step's many waits and polls each kind only once."""
    for repeated in ("waits outside", "woken by timer"):
        if repeated in line.text:
            return line.step, repeated
    return line.step, f"{line.at_s} {line.text}"
