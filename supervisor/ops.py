"""`kernel-supervisor workflow …`: find workflows, see what they wait for, start and steer them.

Exit status: 0 done, 1 the thing asked for failed or does not exist, 2 usage, 69 a store can not be reached.
"""

from __future__ import annotations

import click

from supervisor.ops_list import list_
from supervisor.ops_record import record
from supervisor.ops_repair import repair
from supervisor.ops_replay import replay
from supervisor.ops_show import attempts, show, watch
from supervisor.ops_start import start
from supervisor.ops_steer import signal, supersede, unpark


@click.group()
def workflow() -> None:
    """Find workflows, see what they wait for, start and steer them."""


for command in (attempts, list_, record, repair, replay, show, signal, start, supersede, unpark, watch):
    workflow.add_command(command)
