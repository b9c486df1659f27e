"""What operator commands share: durations, times, text made safe, the terminal."""

from __future__ import annotations

import json

import pytest

from kernel.config import is_plain_terminal
from supervisor.ops_shell import clock_text, say, say_json, span_text, visible


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0 ms"),
        (999, "999 ms"),
        (1_500, "1.5 s"),
        (119_999, "120.0 s"),
        (120_000, "2 min"),
        (7_200_000, "2 h 0 min"),
        (9_000_000, "2 h 30 min"),
        (180_000_000, "2 d 2 h"),
    ],
)
def test_a_duration_is_told_by_two_figures(ms: int, text: str) -> None:
    assert span_text(ms) == text


def test_a_time_that_no_clock_can_show_is_shown_as_the_number_that_it_is() -> None:
    assert clock_text(10**18) == f"{10**18} ms"


def test_no_character_of_others_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b[2J\x07\x9b31m\u202eevil\r\nb"

    assert visible(hostile) == r"a\x1b[2J\x07\x9b31m\u202eevil\r\nb"
    say_json({"id": hostile})
    said = capsys.readouterr().out
    assert said.isascii() and said.count("\n") == 1 and "\x1b" not in said
    assert json.loads(said) == {"id": hostile}


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("NO_COLOR", "no"), ("TERM", "dumb")])
def test_who_wants_no_colour_gets_none(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert not is_plain_terminal()
    monkeypatch.setenv(name, value)

    say("\x1b[32m█\x1b[0m")

    assert capsys.readouterr().out == "█\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_for_which_json_has_no_word_is_null(value: float, capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"v": 1, "result": {"name": "é", "scores": [1.5, value]}})

    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "v": 1,
        "result": {"name": "é", "scores": [1.5, None]},
    }
