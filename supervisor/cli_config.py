"""`kernel-supervisor config …`: what is set, where it came from, and whether it is right (dc-config)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kernel.config import Loaded

_COLUMN = 48

_config_option = click.option("--config", "config_file", metavar="FILE", envvar="KERNEL_CONFIG", help="Settings, TOML.")


@click.group()
def config() -> None:
    """Show and check the settings: flags over environment over file over defaults."""


@config.command("show")
@_config_option
@click.option("--origin", is_flag=True, help="Also where each value came from: file and line, variable, or default.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def show(config_file: str | None, origin: bool, as_json: bool) -> None:
    """Print every setting in force; secrets are masked."""
    import msgspec  # `--help` needs none of it

    loaded = _loaded(config_file)
    if as_json:
        settings = {
            name: {"value": msgspec.to_builtins(loaded.config.shown(name)), "origin": found.text}
            for name, found in loaded.origins.items()
        }
        click.echo(msgspec.json.encode({"v": 1, "settings": settings}).decode())
        return
    for name, found in loaded.origins.items():
        line = f"{name} = {msgspec.json.encode(loaded.config.shown(name)).decode()}"
        click.echo(f"{line:<{_COLUMN}}  ({found.text})" if origin else line)


@config.command("check")
@click.argument("file", required=False)
@_config_option
def check(file: str | None, config_file: str | None) -> None:
    """Read FILE, or the file that a start would take, with the environment, and say whether it is right."""
    from supervisor.ops_config import check_settings  # loads the drivers of the stores

    check_settings(file or config_file)
    click.echo("the settings are right")


@config.command("schema")
def schema() -> None:
    """Print the JSON Schema of a settings file, for editors."""
    import msgspec  # `--help` needs none of it

    from kernel.config import Config  # loads msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(msgspec.json.schema(Config)), indent=2).decode())


def _loaded(config_file: str | None) -> Loaded:
    from kernel.config import load  # loads msgspec

    return load({}, file=config_file)
