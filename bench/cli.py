"""`kernel-supervisor bench …`: measuring, on this machine, now.

Exit status: 0 measured and every promise kept, 1 a promise was broken or the run failed, 2 usage, 69 a server that was
given does not answer.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench import depth_plot, report, workers_plot
from bench.duration import Duration
from bench.machine import file_system, load_average
from bench.plan import Plan
from bench.progress import open_progress
from bench.repeats import REPEATS, repeated
from bench.run_folder import run_folder
from bench.script_plan import DEPTH_MAX, DEPTHS, ScriptBench, ScriptPlan
from bench.servers import Durability, Servers, check_faults, durability_of, redis_url_of, server_options, where
from bench.svg_file import SvgFile
from supervisor.cli_numbers import WholeNumber
from supervisor.termination import end_as_by_interrupt

if TYPE_CHECKING:
    from bench.measured_run import Measured


@click.group("bench", no_args_is_help=False)
def main() -> None:
    """Measure on this machine; whatever is printed or written was counted or timed in that run."""


def _load_options(command: Callable[..., None]) -> Callable[..., None]:
    """What is run, and how hard."""
    for option in (
        click.option(
            "--durability",
            type=click.Choice(["full", "normal"]),
            help="What a commit of the embedded store survives (full).",
        ),
        click.option(
            "--slots",
            type=WholeNumber(1, 256),
            metavar="N",
            default=8,
            help="Workflows one worker runs at once (8).",
        ),
        click.option(
            "--workers",
            type=WholeNumber(1, 64),
            metavar="N",
            multiple=True,
            default=[2],
            help="Worker processes (2); several times for a run of each.",
        ),
        click.option(
            "--count", type=WholeNumber(1, 200_000), metavar="N", default=1000, help="Workflows to run (1000)."
        ),
    ):
        command = option(command)
    return command


def _fault_options(command: Callable[..., None]) -> Callable[..., None]:
    """What goes wrong meanwhile."""
    for option in (
        click.option(
            "--seed",
            type=WholeNumber(0, 2**32 - 1),
            metavar="N",
            help="Chooses whom to kill (a fresh one, printed).",
        ),
        click.option("--flush-every", "flush_every_s", type=Duration(), metavar="TIME", help="Empty Redis that often."),
        click.option(
            "--kill-every",
            "kill_every_s",
            type=Duration(),
            metavar="TIME",
            help="SIGKILL a worker that often: 1s, 500ms.",
        ),
    ):
        command = option(command)
    return command


def _report_options(command: Callable[..., None]) -> Callable[..., None]:
    """What becomes of the figures."""
    path = click.Path(path_type=Path)
    for option in (
        click.option(
            "--compare", "compare_file", type=path, metavar="FILE", help="Show what changed since that report."
        ),
        click.option("--json", "json_file", type=path, metavar="FILE", help="Write the report there."),
    ):
        command = option(command)
    return command


_plot_option = click.option("--plot", "plot_file", type=SvgFile(), metavar="FILE.svg", help="Draw it (SVG).")
_data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=".kernel",
    help="Disk to measure on (.kernel).",
)


@main.command()
@_load_options
@_fault_options
@_report_options
@_plot_option
@click.option(
    "--open",
    "open_limit",
    type=WholeNumber(1),
    metavar="N",
    help="Open at once (all; with faults 2 × workers × slots).",
)
@click.option(
    "--limit", "limit_s", type=Duration(), metavar="TIME", default=120.0, help="The load must be done by then (120s)."
)
@click.option(
    "--observation-outage",
    "around_outage_s",
    type=Duration(),
    metavar="TIME",
    help="Stop the store of observations that long, and compare.",
)
@click.option("--pairs", type=WholeNumber(1, 20), metavar="N", default=1, help="Of runs with and without it (1).")
@click.option(
    "--idle-samples", type=WholeNumber(1, 10_000), metavar="N", default=300, help="Workflows run one by one (300)."
)
@click.option("--repeats", type=WholeNumber(1, 100), metavar="N", help="Runs, each on a fresh tree (3; with faults 1).")
@server_options
@_data_dir_option
def workflows(
    workers: tuple[int, ...], seed: int | None, durability: Durability | None, repeats: int | None,
    redis_url: str | None, store_uri: str | None, json_file: Path | None, compare_file: Path | None,
    plot_file: Path | None, data_dir: Path, pairs: int, **settings: Any,
) -> None:  # fmt: skip
    """Workflows of three trivial steps through the real tree: rate, cost, latency, and what a kill costs."""
    seed = secrets.randbits(32) if seed is None else seed
    servers = Servers(redis_url=redis_url, store_uri=store_uri)
    settings |= {"seed": seed, "servers": servers, "durability": durability_of(servers, durability, "full")}
    plans = [Plan(workers=number, **settings) for number in sorted(set(workers))]
    around = plans[0].around_outage_s is not None
    if around and (len(plans) > 1 or plans[0].faulty or plot_file is not None or repeats is not None):
        raise click.UsageError("--observation-outage: with one number of --workers, no other faults, --repeats, --plot")
    check_faults(servers, flush=plans[0].flush_every_s is not None, observation_outage=around)
    usual = 1 if around or plans[0].faulty else REPEATS
    plans = [replace(plan, repeats=repeats or usual) for plan in plans]
    before = _checked("workflows", json_file, compare_file, plot_file)
    end_as_by_interrupt()
    load = load_average()  # of others: this run is not part of it yet
    from bench import outage_row  # as the next
    from bench.workflow_row import findings_of, row_of, shares_of, text_of  # loads the whole kernel

    plans = outage_row.plans_of(plans[0], pairs) if around else plans
    measured, disk = _measured(plans, data_dir, within_s=plans[0].limit_s if repeats is None else None)
    runs, first = [run for of_plan in measured for run in of_plan], measured[0][0]
    rows = [row_of(*of_plan) for of_plan in measured]
    numbers: Any = [plan.workers for plan in plans] if len(set(workers)) > 1 else plans[0].workers
    found = report.made(
        "workflows",
        server=first.server,
        settings={**plans[0].settings(), "workers": numbers, **where(first.redis, first.store, disk, load)},
        rows=rows,
        shares=shares_of(runs),
        findings=findings_of(runs),
    )
    for of_plan, row in zip(measured, rows, strict=True):
        click.echo("\n".join(text_of(of_plan, row)))
    for line in outage_row.text_of(runs) if around else ():
        click.echo(line)
    if plot_file is not None:
        workers_plot.write(f"bench workflows, {found.machine}", rows, plot_file)
    _conclude(found, before, json_file)


@main.command()
@click.option("--count", type=WholeNumber(1, 100_000), metavar="N", default=20_000, help="Waiting subscribers (20000).")
@click.option("--workers", type=WholeNumber(1, 64), metavar="N", default=2, help="Worker processes (2).")
@click.option(
    "--slots", type=WholeNumber(1, 256), metavar="N", default=8, help="Workflows one worker runs at once (8)."
)
@click.option(
    "--durability", type=click.Choice(["full", "normal"]), help="What a commit of the embedded store survives (normal)."
)
@_report_options
@click.option(
    "--limit", "limit_s", type=Duration(), metavar="TIME", default=200.0, help="All parts must be done by then (200s)."
)
@click.option("--repeats", type=WholeNumber(1, 100), metavar="N", default=1, help="Runs, each on fresh trees (1).")
@server_options
@_data_dir_option
def fanout(
    durability: Durability | None, redis_url: str | None, store_uri: str | None, json_file: Path | None,
    compare_file: Path | None, data_dir: Path, **settings: Any,
) -> None:  # fmt: skip
    """One event to many waiting workflows through the real tree: rate, cost, memory; nobody twice, nobody lost."""
    servers = Servers(redis_url=redis_url, store_uri=store_uri)
    kept = durability_of(servers, durability, "normal")
    before = _checked("fanout", json_file, compare_file)
    end_as_by_interrupt()
    load = load_average()  # of others: this run is not part of it yet
    from bench.fanout_row import findings_of, row_of, text_of  # loads the whole kernel
    from bench.fanout_run import FanOutPlan, measure  # the same

    plan, runs = FanOutPlan(servers=servers, durability=kept, **settings), []
    for _ in range(plan.repeats):
        with run_folder(data_dir) as folder, open_progress() as progress:
            runs.append(measure(plan, folder, progress))
            disk = file_system(folder)
    rows = [row_of(plan, *parts) for parts in zip(*runs, strict=True)]
    last = runs[-1][-1]
    found = report.made(
        "fanout",
        server=last.server,
        settings={**plan.settings(), **where(last.redis, last.store, disk, load)},
        rows=rows,
        shares={},
        findings=findings_of(plan, runs),
    )
    for line in text_of(plan, rows, last.store):
        click.echo(line)
    _conclude(found, before, json_file)


def _script_options(command: Callable[..., None]) -> Callable[..., None]:
    """How scripts are measured."""
    for option in (
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path),
            metavar="DIR",
            default=".kernel",
            help="Where the embedded server has its folder (.kernel).",
        ),
        click.option(
            "--limit", "limit_s", type=Duration(), metavar="TIME", default=200.0, help="Must be done by then (200s)."
        ),
        click.option(
            "--slice", "slice_s", type=Duration(0.001), metavar="TIME", default=0.04, help="Of one slice (40ms)."
        ),
        click.option("--repeats", type=WholeNumber(1, 1000), metavar="N", default=15, help="Slices of each row (15)."),
        click.option(
            "--depth",
            "depths",
            type=WholeNumber(8, 1_000_000),
            metavar="N",
            multiple=True,
            help="How much lies there already; several times for several rows.",
        ),
        _plot_option,
        click.option(
            "--redis",
            "redis_url",
            metavar="URL|env",
            callback=redis_url_of,
            help="Measure that server, or the one of REDIS_URL (an embedded one).",
        ),
    ):
        command = option(command)
    return _report_options(command)


@main.command()
@_script_options
def lanes(**options: Any) -> None:
    """Popping and pushing among 10^3 to 10^6 entries, against a no-op script; are the shares 8:6:4:2?"""
    _scripts("lanes", **options)


@main.command()
@_script_options
@click.option(
    "--observe", "observe_s", type=Duration(), metavar="TIME", default=3.0, help="Watch the limits so long (3s)."
)
def permits(**options: Any) -> None:
    """Acquire, start, renew, release among 8 to 100,000 holders, against a no-op script; are the limits kept?"""
    _scripts("permits", **options)


@main.command()
@_script_options
def streams(**options: Any) -> None:
    """Appending to 10^3 to 10^6 frames, against a no-op script; what aggregation saves; do offsets have holes?"""
    _scripts("streams", **options)


def _scripts(
    bench: ScriptBench, *, depths: tuple[int, ...], json_file: Path | None, compare_file: Path | None, data_dir: Path,
    plot_file: Path | None, **settings: Any,
) -> None:  # fmt: skip
    """Run one of the three and tell it."""
    if max(depths, default=0) > DEPTH_MAX[bench]:
        raise click.UsageError(f"--depth: at most {DEPTH_MAX[bench]:,} for {bench}")
    plan = ScriptPlan(bench=bench, depths=tuple(sorted(set(depths))) or DEPTHS[bench], **settings)
    before = _checked(bench, json_file, compare_file, plot_file)
    end_as_by_interrupt()
    load = load_average()  # of others: this run is not part of it yet
    from bench.script_row import text_of  # with the next
    from bench.script_run import measure  # loads the whole kernel

    # A server that is there needs no folder.
    place = run_folder(data_dir) if plan.redis_url is None else nullcontext(data_dir)
    with place as folder, open_progress() as progress:
        run = measure(plan, folder, progress)
    found = report.made(
        bench,
        server=run.version,
        settings={**plan.settings(), "pinned": run.pinned, "file_system": "no disk used", "load_before": load},
        rows=run.rows,
        shares=run.shares,
        findings=run.findings,
    )
    for line in [*text_of(plan, run.rows, run.pinned), *run.lines]:
        click.echo(line)
    if plot_file is not None:
        depth_plot.write(f"bench {bench}, {run.version}, {found.machine}", run.rows, plot_file)
    _conclude(found, before, json_file)


def _checked(
    bench: str, json_file: Path | None, compare_file: Path | None, plot_file: Path | None = None
) -> report.Report | None:
    """The report to compare with. Files are looked at first: nobody waits for a run and then reads that it is lost."""
    for option, file in (("--json", json_file), ("--plot", plot_file)):
        try:
            if file is not None:
                report.check_place(file)
        except OSError as error:
            raise click.UsageError(f"{option} {file}: {error.strerror}") from None
    if compare_file is None:
        return None
    try:
        return report.read(compare_file, bench)
    except report.BadReport as error:
        raise click.UsageError(f"--compare {error}") from None


def _measured(plans: list[Plan], parent: Path, *, within_s: float | None) -> tuple[list[list[Measured]], str]:
    """All runs of each plan, as many as `repeated` allows, and what the disk under them is."""
    from bench.measured_run import measure  # loads the whole kernel

    measured: list[list[Measured]] = []
    for plan in plans:
        measured.append([])
        for number in repeated(plan.repeats, within_s):
            with run_folder(parent) as folder, open_progress() as progress:
                measured[-1].append(measure(plan, number, folder, progress))
                disk = file_system(folder)
    return measured, disk


def _conclude(found: report.Report, before: report.Report | None, json_file: Path | None) -> None:
    """Commit and machine, what changed, the file, the verdict."""
    settings = found.settings
    click.echo(
        f"  {'measured on':<20}{found.machine}, {settings['file_system']}, load before {settings['load_before']}"
    )
    tree = f" ({settings['redis']}), store {settings['store']}" if "store" in settings else ""
    click.echo(f"  {'with':<20}{found.python}, {found.server}{tree}, commit {found.commit}")
    if before is not None:
        click.echo(
            "\n".join(["since the report of before:", *(f"  {line}" for line in report.compared(before, found))])
        )
    if json_file is not None:
        try:
            report.write(found, json_file)
        except OSError as error:
            raise click.ClickException(f"--json {json_file}: {error.strerror}") from None
    for line in found.findings:
        click.echo(f"violation: {line}", err=True)
    sys.exit(1 if found.findings else 0)
