"""Activities that hold secrets in their hands, as those of an application that uses the same servers do."""

from __future__ import annotations

import os

from kernel import App, Context, Definition, NonRetryable, Step

URLS = "SECRET_URLS"
"""The environment variable in which the test hands in what the activities quote."""


def works(ctx: Context) -> str:
    return "done"


def quotes(ctx: Context) -> None:
    """The text of a driver that quotes its URL: a badly made one does."""
    raise NonRetryable(f"can not connect to {os.environ[URLS]} (user and password were given)")


def breaks(ctx: Context) -> None:
    """The same, as a foreign exception with another as its cause."""
    try:
        raise ConnectionError(f"{os.environ[URLS]}: refused")
    except ConnectionError as error:
        raise RuntimeError(f"no answer from ({os.environ[URLS]})") from error


WORKS = Definition(type="works", steps=[Step("only", works)])
QUOTES = Definition(type="quotes", steps=[Step("only", quotes)])
BREAKS = Definition(type="breaks", steps=[Step("only", breaks)])
app = App(definitions=[WORKS, QUOTES, BREAKS])
