"""What `lua list` shows (dc-lua-versioned)."""

from __future__ import annotations

from typing import Any

from supervisor.roles import resolve


def script_rows() -> list[dict[str, Any]]:
    """Name, version and SHA-1 of every script, by name. The scripts are found by a string: the tree knows no script."""
    return sorted(
        ({"name": script.name, "version": script.version, "sha1": script.sha1} for script in resolve("lua:scripts")()),
        key=lambda row: str(row["name"]),
    )
