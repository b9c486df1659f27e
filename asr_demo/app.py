"""The demo's application: `kernel-supervisor start --app asr_demo.app:app`.

`asr_demo.app:held_at_STEP` is the same application, whose first invocation of STEP waits to be killed (see `holding`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from asr_demo import activities
from asr_demo.flow import STEPS, Activity, AsrTask, JobInput, in_ledger, make_ports
from asr_demo.holding import held_once
from kernel import App, Companion, Definition, Limit, Step

HELD_PREFIX = "held_at_"


def content_job(wrap: Callable[[str, Activity], Activity] = lambda _name, activity: activity) -> Definition:
    """The `async_content_job`: check, transcribe, compose, verify (spl-example-definition)."""

    def entry(name: str) -> Activity:
        return in_ledger(wrap(name, getattr(activities, name)))

    return Definition(
        type="async_content_job",
        input=JobInput,
        identity=("tenant_id", "object_id"),
        steps=[
            Step("preprocess", entry("preprocess"), timeout=timedelta(seconds=30), max_retry=2),
            Step(
                "transcribe_audio",
                entry("transcribe_audio"),
                timeout=timedelta(minutes=30),
                resource="speech_recognition",
                checkpoint=AsrTask,
            ),
            Step(
                "compose_content",
                entry("compose_content"),
                timeout=timedelta(minutes=15),
                resource="content_generation",
                streams=True,
            ),
            Step("finalize", entry("finalize"), timeout=timedelta(seconds=30), max_retry=2),
        ],
        success_finalizer=activities.publish,
        failure_finalizer=activities.mark_failed,
    )


def make_app(definition: Definition) -> App:
    """The application around one version of the job."""
    return App(
        definitions=[definition],
        limits={
            "speech_recognition": Limit(max_concurrency=4, max_starts_per_second=2),
            "content_generation": Limit(max_concurrency=4),
        },
        ports=make_ports,
        companions=[Companion("asr", "asr_demo.asr_service:main")],
    )


app = make_app(content_job())
plan = app.definition("async_content_job").plan


def __getattr__(name: str) -> Any:
    step = name.removeprefix(HELD_PREFIX)
    if name.startswith(HELD_PREFIX) and step in STEPS:
        return make_app(content_job(lambda entry, activity: held_once(activity) if entry == step else activity))
    raise AttributeError(name)
