"""Dying on purpose: the first invocation of one step waits to be killed, after its effect and before its result.

It is a decorator of the demo's activities and nothing of the kernel. Which step is held is part of the application's
name, which the workers inherit through the fork. The driver learns the process number from a file in the data
folder, kills that process, and the run has to come to the same end.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from pathlib import Path
from typing import Any

from asr_demo.flow import Activity, Wrap
from kernel import Context, KernelError

FILE_NAME = "held.pid"
HELD_PREFIX = "held_at_"
HOLD_S = 60.0


class NobodyKilled(KernelError):
    """The held invocation was not killed within a minute: the driver is gone."""

    code = "nobody_killed"


def held_at(step: str) -> Wrap:
    """For `make_app`: every activity as it is, but that of `step`, whose first invocation is held."""
    return lambda name, activity: held_once(activity) if name == step else activity


def held_once(activity: Activity) -> Activity:
    """`activity`, whose first invocation in a data folder has its effect, says its pid, and waits for SIGKILL."""

    def hold(ctx: Context) -> None:
        if _first(Path(ctx.ports.data_dir) / FILE_NAME):
            ctx.cancel.wait(HOLD_S)
            raise NobodyKilled(f"step {ctx.step} was held for {HOLD_S:g} s and nobody killed its worker")

    def held(ctx: Context) -> Any:
        result = activity(ctx)
        hold(ctx)
        return result

    async def held_async(ctx: Context) -> Any:
        result = await activity(ctx)
        await asyncio.to_thread(hold, ctx)
        return result

    chosen = held_async if inspect.iscoroutinefunction(activity) else held
    chosen.__name__ = activity.__name__
    return chosen


def _first(path: Path) -> bool:
    """Whether this is the first one; the file appears with its content, so that nobody reads half a number."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(str(os.getpid()), encoding="ascii")
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def held_pid(folder: Path) -> int | None:
    """The process that waits to be killed, once there is one."""
    try:
        return int((folder / FILE_NAME).read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        return None
