"""A stand-in for the metrics' files: it keeps what was counted, by name and labels."""

from __future__ import annotations

from collections import defaultdict

from kernel.observe.metric_names import METERS

Key = tuple[str, ...]


class KeptMeters:
    """As `kernel.observe.metrics.Meters`; refuses what the table does not have."""

    def __init__(self) -> None:
        self.counts: dict[Key, float] = defaultdict(float)
        self.observed: dict[Key, list[float]] = defaultdict(list)
        self.gauges: dict[Key, float] = {}

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        self.counts[self._checked("counter", name, labels)] += by

    def observe(self, name: str, value_s: float, *labels: str) -> None:
        self.observed[self._checked("histogram", name, labels)].append(value_s)

    def set(self, name: str, value: float, *labels: str) -> None:
        self.gauges[self._checked("gauge", name, labels)] = value

    def of(self, name: str) -> dict[Key, float]:
        """Labels → count of one counter."""
        return {key[1:]: value for key, value in self.counts.items() if key[0] == name}

    def times(self, name: str) -> dict[Key, list[float]]:
        """Labels → what was observed of one histogram."""
        return {key[1:]: values for key, values in self.observed.items() if key[0] == name}

    @staticmethod
    def _checked(kind: str, name: str, labels: tuple[str, ...]) -> Key:
        meter = METERS[name]
        assert (meter.kind, meter.source, len(meter.labels)) == (kind, "worker", len(labels)), name
        assert all(isinstance(label, str) for label in labels), labels
        return (name, *labels)
