"""The demo's code has three layers, and an import goes down or sideways; its flows are assembled in one way."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import asr_demo
from asr_demo import app, show_app, summary
from asr_demo.flow import Wrap
from kernel import App, Definition

FOLDER = Path(asr_demo.__file__).parent
PORTS = {
    "asr_client", "asr_protocol", "composer", "flow", "ledger", "model", "notes", "receiver", "shows", "subscriptions",
    "table_file", "wav",
}  # fmt: skip
"""Ports and adapters: the world outside, as the steps see it."""
ACTIVITIES = {"activities", "speech", "web"}
"""What a step does."""
ASSEMBLY = {"app", "holding", "observer", "show_app", "summary"}
"""Which steps there are, in what order, under which conditions; small flows hold their steps beside it."""
LAYERS = (PORTS, ACTIVITIES, ASSEMBLY)


def imports(module: str) -> set[str]:
    """The names of the demo's modules that this one imports, `kernel.Name` for what comes from the authors' door."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((FOLDER / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "asr_demo":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("asr_demo."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "kernel":
            found |= {f"kernel.{alias.name}" for alias in node.names}
    return found


@pytest.mark.req("spl-three-layers")
@pytest.mark.parametrize("level", range(3), ids=["ports", "activities", "assembly"])
def test_no_layer_imports_one_above_it(level: int) -> None:
    above = {module for layer in LAYERS[level + 1 :] for module in layer}

    assert {module: imports(module) & above for module in LAYERS[level] if imports(module) & above} == {}


@pytest.mark.req("spl-three-layers")
def test_only_the_assembly_declares_flows() -> None:
    declaring = {"kernel.App", "kernel.Definition", "kernel.Step"}

    assert {module for layer in (PORTS, ACTIVITIES) for module in layer if imports(module) & declaring} == set()
    assert all(imports(module) & declaring for module in ("app", "observer", "show_app", "summary"))


@pytest.mark.req("spl-uniform-assembly")
def test_every_content_flow_has_the_same_factory() -> None:
    factories = (app.content_job, app.web_content, summary.live_summary)

    assert {str(inspect.signature(factory, eval_str=True).return_annotation) for factory in factories} == {
        str(Definition)
    }
    for factory in factories:
        (parameter,) = inspect.signature(factory, eval_str=True).parameters.values()
        assert (parameter.name, parameter.annotation) == ("wrap", Wrap)
        made = factory(lambda name, activity: activity)
        assert (made.success_finalizer is None, made.failure_finalizer is None) == (False, False)
        assert made.identity[0] == "tenant_id"


@pytest.mark.req("spl-uniform-assembly")
def test_every_application_has_the_same_factory() -> None:
    for module in (app, show_app):
        signature = inspect.signature(module.make_app, eval_str=True)
        assert [(p.name, p.annotation) for p in signature.parameters.values()] == [("wrap", Wrap)]
        assert signature.return_annotation is App
        assert isinstance(module.app, App)
