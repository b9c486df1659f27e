"""`kernel-supervisor`: the command line (ARCHITECTURE §10). What is heavy is imported inside the command that needs it.

Exit status: 0 done, 1 failed, 2 usage or configuration, 3 something is not running, 69 a store can not be reached;
128 and the number of a signal that ended the command.
What goes wrong is one line on stderr that begins with `error:`.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli_lazy import Lazy, LazyGroup
from supervisor.cli_numbers import Seconds
from supervisor.cli_output import OutputLost, drop_unwritable, guard_output
from supervisor.termination import exit_status_of

if TYPE_CHECKING:
    from kernel.config import Loaded

EXIT_FAILED = 1
EXIT_NOT_RUNNING = 3
EXIT_UNAVAILABLE = 69

data_dir_option = click.option("--data-dir", metavar="DIR", help="Data folder of the tree (default .kernel).")
config_option = click.option("--config", "config_file", metavar="FILE", envvar="KERNEL_CONFIG", help="Settings, TOML.")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")

_LAZY = {
    "demo": Lazy("asr_demo.live:main", "Run the bundled example."),
    "config": Lazy("supervisor.cli_config:config", "Show and check the settings."),
    "doctor": Lazy("supervisor.ops_doctor:doctor", "Look at everything that a tree needs, and say what is wrong."),
    "bench": Lazy("bench.cli:main", "Measure scripts, workflows and fan-outs."),
    "dispatch": Lazy("supervisor.ops_dispatch:dispatch", "Accepted work that is not registered yet."),
    "lanes": Lazy("supervisor.ops_lanes:lanes", "What is due in each lane, and which of them does not move."),
    "limits": Lazy("supervisor.ops_limits:limits", "What resources allow, who holds them, who waits."),
    "workflow": Lazy("supervisor.ops:workflow", "Find workflows, see what they wait for, start and steer them."),
}


@click.group(
    cls=LazyGroup, lazy=_LAZY, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="workflow-kernel", prog_name="kernel-supervisor")
def cli() -> None:
    """Run and operate a workflow kernel: one supervisor, its workers and its dispatchers."""
    # `module:attribute` may name a module of the working directory; last, so that it hides nothing that is installed.
    if "" not in sys.path:
        sys.path.append("")


@cli.command()
@click.option("--app", metavar="MODULE:ATTRIBUTE", help="The application to run.")
@click.option("--workers", metavar="N", help="Worker processes (default 2).")
@click.option("--dispatchers", metavar="N", help="Dispatcher processes (default 1).")
@click.option("--slots", metavar="K", help="Workflows that one worker runs at once (default 8).")
@data_dir_option
@config_option
@click.option("--namespace", metavar="NAME", help="Prefix of everything in shared stores (default `default`).")
@click.option(
    "--durability", metavar="full|normal", help="What a commit to the embedded store survives (default full)."
)
@click.option("--metrics", metavar="PORT", help="Serve /metrics, /livez and /readyz there (default: nowhere).")
@click.option("--drain", "drain_s", metavar="SECONDS", help="Grace time of a stop (default 25).")
@click.option("--lease", "lease_s", metavar="SECONDS", help="Lease of a claim (default 30).")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error (default info).")
@click.option("--log-format", metavar="auto|text|json", help="auto: text on a terminal, else JSON.")
@click.option("--log-file", metavar="FILE", help="Write the log there instead of to stderr.")
def start(config_file: str | None, **flags: str | None) -> None:
    """Run the tree in the foreground until SIGTERM, SIGINT or `stop`. A second signal hastens, a third kills."""
    from supervisor.os_signals import SignalPipe  # loads ctypes

    signals = SignalPipe()

    from supervisor.boot import boot  # loads the whole tree

    sys.exit(boot(_loaded(config_file, flags).config, signals))


@cli.command()
@data_dir_option
@config_option
@click.option(
    "--timeout", "timeout_s", type=Seconds(), metavar="SECONDS", help="Wait at most that long (default: for ever)."
)
def stop(data_dir: str | None, config_file: str | None, timeout_s: float | None) -> None:
    """Drain the running tree and wait for its end. Exit 1 if a child had to be killed."""
    from supervisor.control_client import ControlClient, NoSupervisor  # loads msgspec

    try:
        with ControlClient(_data_dir(data_dir, config_file)) as client:
            status = client.stop(timeout_s)
    except NoSupervisor as nobody:
        click.echo(str(nobody), err=True)
        return
    except TimeoutError:
        raise click.ClickException("the supervisor did not end in time") from None
    if status != 0:
        how = "was killed" if status is None else f"ended with exit status {status}"
        raise click.ClickException(f"the supervisor {how}")


@cli.command()
@data_dir_option
@config_option
@json_option
@click.option("--watch", is_flag=True, help="Again every second, until interrupted or until the tree ends.")
@click.option(
    "--wait",
    type=click.Choice(["ready", "stopped"]),
    metavar="ready|stopped",
    help="First wait until all runs, or has ended.",
)
@click.option("--timeout", "timeout_s", type=Seconds(), metavar="SECONDS", help="How long --wait may take.")
def status(
    data_dir: str | None, config_file: str | None, as_json: bool, watch: bool, wait: str | None, timeout_s: float | None
) -> None:
    """Show every child. Exit 3 when something is not running; 1 when --wait stopped takes too long."""
    from supervisor.status_command import show, wait_for  # loads psutil

    if wait is None and timeout_s is not None:
        raise click.UsageError("--timeout: says how long --wait may take")
    if wait is not None and watch:
        raise click.UsageError("--wait and --watch: one of them")
    folder = _data_dir(data_dir, config_file)
    if wait is None:
        sys.exit(show(folder, as_json=as_json, watch=watch))
    sys.exit(wait_for(folder, "ready" if wait == "ready" else "stopped", timeout_s, as_json=as_json))


@cli.group()
def lua() -> None:
    """The scripts that run inside Redis."""


@lua.command("list")
@json_option
def lua_list(as_json: bool) -> None:
    """Print name, version and SHA-1 of every script."""
    from supervisor.lua_table import script_rows  # loads the scripts

    rows = script_rows()
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode({"v": 1, "scripts": rows}).decode())
        return
    for row in rows:
        click.echo(f"{row['name']:<24} {row['version']!s:<8} {row['sha1']}")


def _loaded(config_file: str | None, flags: dict[str, Any]) -> Loaded:
    from kernel.config import load  # loads msgspec

    return load(flags, file=config_file)


def _data_dir(data_dir: str | None, config_file: str | None) -> str:
    """The folder of the tree that a command speaks to: the flag alone decides if it is given."""
    return data_dir if data_dir is not None else _loaded(config_file, {}).config.data_dir


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; ends the process."""
    guard_output()
    try:
        status = _ended(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OutputLost as lost:
        if str(lost):
            _say(str(lost))
        status = EXIT_FAILED
    drop_unwritable()
    sys.exit(status)


def _ended(arguments: list[str] | None) -> int | str | None:
    """Run the command; the exit status. Raises OutputLost, and what is a fault of the program."""
    try:
        found = cli.main(arguments, prog_name="kernel-supervisor", standalone_mode=False)
        return found if isinstance(found, int) else 0
    except SystemExit as end:
        return end.code
    except click.exceptions.Abort as abort:
        return exit_status_of(abort.__cause__)
    except click.ClickException as error:
        _say(error.format_message())
        return error.exit_code
    except Exception as error:
        code = _exit_code_of(error)
        if code is None:
            raise
        _say(str(error))
        return code


def _exit_code_of(error: Exception) -> int | None:
    """The exit status of an error of ours; None for a fault of the program, whose traceback is wanted."""
    from kernel.errors import InvalidConfig, KernelError, Unavailable  # nothing that fails early needs it

    match error:
        case InvalidConfig():
            return 2
        case Unavailable():
            return EXIT_UNAVAILABLE
        case KernelError():
            return 1
    return None


def _say(line: str) -> None:
    from supervisor.log_format import one_line  # loads msgspec
    from supervisor.redaction import Redactor  # loads the settings' module

    with suppress(OSError):  # where nobody can be told, the exit status tells
        click.echo(f"error: {one_line(' '.join(Redactor()(line).split()))}", err=True)


if __name__ == "__main__":
    main()
