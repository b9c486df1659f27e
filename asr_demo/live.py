"""`kernel-supervisor demo`: the command, its options, and the folder and settings of its run.

Without `--subscribers` it is one content job (`live_single`); with it, the whole live-summary story (`live_audience`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec

from asr_demo import live_audience, live_single
from asr_demo.audience_run import Orders
from asr_demo.flow import STEPS
from asr_demo.live_chaos import SEED_MAX, fresh_seed
from asr_demo.live_page import PORT, missing_extra, taken_port
from asr_demo.page_orders import PageOrders
from asr_demo.screen import visible
from asr_demo.variants import variant_name
from asr_demo.wav import AudioRefused, check_wav, keep_wav
from kernel import InvalidConfig, KernelError
from kernel.config import Config, Limit, load
from supervisor.cli_numbers import WholeNumber
from supervisor.fresh_folder import fresh_folder
from supervisor.session import SessionFailed
from supervisor.termination import end_as_by_interrupt, exit_status_of

RECORDING = Path(__file__).parent / "audio" / "architecture_night.wav"
SUBSCRIBERS, SUBSCRIBERS_MAX = 25, 1_000
EXIT_USAGE, EXIT_MISSING = 2, 78
SCAN_S = 2.0
"""What died between two writes is found by the scan: every half minute by default, too rarely for an audience."""


@click.command("demo")
@click.option("--audio", metavar="FILE", help="Your own recording: WAV, PCM 16 bit, mono, 16 kHz, at most 10 minutes.")
@click.option(
    "--subscribers",
    type=WholeNumber(1, SUBSCRIBERS_MAX),
    is_flag=False,
    flag_value=SUBSCRIBERS,
    metavar="[N]",
    help=f"The whole live-summary story for N users ({SUBSCRIBERS} when N is left out).",
)
@click.option(
    "--kill-worker-at", "kill_at", type=click.Choice(STEPS), help="SIGKILL the worker that executes this step."
)
@click.option("--chaos", is_flag=True, help="With --subscribers: kill processes and wipe Redis at random.")
@click.option("--seed", type=WholeNumber(0, SEED_MAX), help="Repeat the kills of an earlier --chaos.")
@click.option(
    "--web",
    "port",
    type=WholeNumber(0, 65_535),
    is_flag=False,
    flag_value=PORT,
    metavar="[PORT]",
    help=f"Serve a page that follows the summaries while they are written ({PORT}; 0: any free port).",
)
@click.option("--stay", is_flag=True, help="With --web: serve on when the run is over, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
@click.option("--keep", is_flag=True, help="Keep the data folder and say where it is.")
@click.option("--data-dir", metavar="DIR", help="Data folder of this run (default: a fresh one under .kernel).")
@click.option("--durability", type=click.Choice(["full", "normal"]), help="What a commit survives (default full).")
def main(
    audio: str | None,
    subscribers: int | None,
    kill_at: str | None,
    chaos: bool,
    seed: int | None,
    port: int | None,
    stay: bool,
    as_json: bool,
    keep: bool,
    data_dir: str | None,
    durability: str | None,
) -> None:
    """Run the bundled example: a talk is checked, transcribed, summarised and delivered, whatever dies meanwhile."""
    if chaos and subscribers is None:
        _refuse("--chaos: needs --subscribers")
    if seed is not None and not chaos:
        _refuse("--seed: needs --chaos")
    if stay and port is None:
        _refuse("--stay: needs --web")
    if find_spec("pocketsphinx") is None:
        _refuse("the demo needs the extra `demo`: pip install 'workflow-kernel[demo]'")
    if port is not None and (missing := missing_extra()) is not None:
        _refuse(missing, EXIT_MISSING)
    end_as_by_interrupt()
    try:
        if port is not None and (taken := taken_port(port)) is not None:
            _refuse(taken)
        with _data_folder(data_dir, keep=keep) as folder:
            chosen = _seed(seed) if chaos else None
            orders = Orders(subscribers or 0, _recording(audio, folder), kill_at, chosen, PageOrders(port, stay))
            ok = _played(folder, orders, durability, as_json=as_json)
    except AudioRefused as error:
        _refuse(f"--audio {audio or RECORDING}: {error.message}")
    except InvalidConfig as error:
        _refuse(str(error))
    except KernelError as error:
        if isinstance(error, SessionFailed) and error.exit_status == EXIT_USAGE:
            sys.exit(EXIT_USAGE)  # its supervisor has said what is wrong with the settings
        click.echo(f"error: {visible(str(error))}", err=True)
        sys.exit(1)
    except KeyboardInterrupt as interrupt:
        with suppress(OSError):  # its terminal may be what has ended
            click.echo("interrupted: everything that ran has been ended", err=True)
        sys.exit(exit_status_of(interrupt))
    sys.exit(0 if ok else 1)


def _played(folder: Path, orders: Orders, durability: str | None, *, as_json: bool) -> bool:
    """The run, without subscribers the single job; whether all is well."""
    variant = variant_name(orders.kill_at, orders.page.port)
    if not orders.subscribers:
        config = _config(folder, f"asr_demo.app:{variant}", durability)
        recording, kill_at = orders.recording, orders.kill_at
        single = live_single.drive(config, folder, recording, kill_at, page=orders.page, quiet=as_json)
        return live_single.show(single, as_json=as_json)
    more = {"limits": _limits(orders.subscribers), "scan_s": SCAN_S, "dispatch_scan_s": SCAN_S}
    config = _config(folder, f"asr_demo.show_app:{variant}", durability, **more)
    run = live_audience.drive(config, folder, orders, quiet=as_json)
    return live_audience.show(run, as_json=as_json)


def _limits(subscribers: int) -> dict[str, object]:
    """So many may start a second that all are through in time; every poll is a start, too (INTERFACES)."""
    speech = Limit(max_concurrency=4, max_starts_per_second=max(2, -(-subscribers // 8)))
    return {"speech_recognition": msgspec.to_builtins(speech)}


def _seed(given: int | None) -> int:
    return fresh_seed() if given is None else given


def _refuse(line: str, status: int = EXIT_USAGE) -> None:
    click.echo(f"error: {visible(line)}", err=True)
    sys.exit(status)


@contextmanager
def _data_folder(data_dir: str | None, *, keep: bool) -> Iterator[Path]:
    """The folder of this run: the given one, which stays, or a fresh one, which goes unless it is kept."""
    with ExitStack() as opened:
        try:
            if data_dir is not None:
                folder = Path(data_dir).absolute()
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            else:
                folder = opened.enter_context(fresh_folder(Path(".kernel").absolute(), "demo-", keep=keep))
        except OSError as error:
            place = Path(data_dir or ".kernel").absolute()
            raise InvalidConfig(f"data_dir: {place} can not be used: {error.strerror}") from None
        if keep and data_dir is None:
            opened.callback(click.echo, f"kept: {folder}", err=True)
        yield folder


def _recording(audio: str | None, folder: Path) -> Path:
    """The checked recording, in a folder that the speech service reads from."""
    if audio is None:
        check_wav(RECORDING)
        return RECORDING
    return keep_wav(Path(audio), folder / "audio")


def _config(folder: Path, app: str, durability: str | None, **more: object) -> Config:
    flags: dict[str, object] = {
        "app": app,
        "data_dir": str(folder),
        "workers": 2,
        "dispatchers": 1,
        "poll_s": 1.0,
        "durability": durability,
        "log_file": str(folder / "kernel.log"),
        **more,
    }
    # The demo is the same everywhere: settings of the user's own trees do not reach into it.
    return load(flags, environ={}, file=os.devnull).config
