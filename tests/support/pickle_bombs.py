"""Bytes that run a command when something unpickles, unmarshals or loads them: written by hand, since nothing of this
project may know those modules. The command makes a file, the canary."""

from __future__ import annotations

from pathlib import Path


def bombs(canary: Path) -> list[bytes]:
    """Pickles of three protocols, and texts that a careless YAML, JSON or eval reader would run."""
    command = f"touch {canary}"
    text = command.encode()
    return [
        b"cos\nsystem\n(S'" + text + b"'\ntR.",
        b"\x80\x02cposix\nsystem\nq\x00U" + bytes([len(text)]) + text + b"q\x01\x85q\x02Rq\x03.",
        b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c" + bytes([len(text)]) + text + b"\x94\x85\x94R\x94.",
        f"!!python/object/apply:os.system ['{command}']".encode(),
        f'{{"py/reduce": [{{"py/function": "os.system"}}, {{"py/tuple": ["{command}"]}}]}}'.encode(),
        f"__import__('os').system('{command}')".encode(),
    ]
