"""A scraper: what is served by the tree under test, as a program outside of it sees it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.process.supervised import LIMIT_S, Supervised
from tests.support.wait import wait_until


class Scraper:
    """The metrics server of one tree, at the url that its status tells."""

    def __init__(self, tree: Supervised) -> None:
        self._tree = tree
        wait_until(lambda: tree.child("metrics")["state"] == "RUNNING", "the metrics are served", LIMIT_S)
        self.url = str(tree.child("metrics")["url"])

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self) -> tuple[int, dict[str, Any]]:
        status, text = self.get("/readyz")
        return status, json.loads(text)

    def wait_ready(self, wanted: int) -> dict[str, Any]:
        """The answer of `/readyz` once it has that status."""

        def asked() -> dict[str, Any] | None:
            status, found = self.ready()
            return found if status == wanted else None

        found = wait_until(asked, f"/readyz says {wanted}", LIMIT_S)
        assert found is not None
        return found

    def families(self) -> dict[str, str]:
        """Name → type of every metric that is there, with or without a series."""
        lines = [line.split() for line in self.get("/metrics")[1].splitlines() if line.startswith("# TYPE ")]
        return {line[2]: line[3] for line in lines}

    def value(self, name: str, **labels: str) -> float:
        """The sum of all series of that name which have these labels; 0 without any."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def wait_value(self, name: str, wanted: float, **labels: str) -> None:
        """Of what is counted, or looked at, a moment after it was done."""
        wait_until(lambda: self.value(name, **labels) == wanted, f"{name} of {labels or 'all'} is {wanted:g}", LIMIT_S)
