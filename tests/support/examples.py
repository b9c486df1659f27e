"""Pytest plugin: a generated example may take its time, as every test here may; these machines are shared and slow at
times. Hypothesis would fail one that takes 200 ms, and one whose making is slow. And every run takes the same ones: a
run that fails fails again."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow]
settings.register_profile("unhurried", deadline=None, derandomize=True, database=None, suppress_health_check=_SLOW)
settings.load_profile("unhurried")
