"""The demo's application: `kernel-supervisor start --app asr_demo.app:app`.

What differs between runs, a step that waits to be killed and the web page, is in the attribute's name: see `variants`.
"""

from __future__ import annotations

from datetime import timedelta

from asr_demo import activities, web
from asr_demo.flow import STEPS, Activity, JobInput, Wrap, in_ledger, make_ports
from asr_demo.speech import AsrTask
from asr_demo.variants import variant
from kernel import App, Companion, Definition, Limit, Step

COMPANIONS = (Companion("asr", "asr_demo.asr_service:main"),)
LIMITS = {
    "speech_recognition": Limit(max_concurrency=4, max_starts_per_second=2),
    "content_generation": Limit(max_concurrency=4),
}


def content_job(wrap: Wrap = lambda _name, activity: activity) -> Definition:
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


def web_content(wrap: Wrap = lambda _name, activity: activity) -> Definition:
    """The `web_content`: fetch a page, write its summary, verify (e2e-web)."""
    generate, finalize = wrap("generate", activities.compose_content), wrap("finalize", activities.finalize)
    return Definition(
        type="web_content",
        input=web.WebInput,
        identity=("tenant_id", "object_id"),
        steps=[
            Step("fetch", in_ledger(wrap("fetch", web.fetch)), timeout=timedelta(seconds=30), max_retry=3),
            Step("generate", in_ledger(generate), timeout=timedelta(minutes=15), resource="content_generation"),
            Step("finalize", in_ledger(finalize), timeout=timedelta(seconds=30), max_retry=2),
        ],
        success_finalizer=activities.publish,
        failure_finalizer=activities.mark_failed,
    )


def make_app(wrap: Wrap = lambda _name, activity: activity) -> App:
    """The application, with every activity as `wrap` makes it."""
    return App(
        definitions=[content_job(wrap), web_content(wrap)], limits=LIMITS, ports=make_ports, companions=COMPANIONS
    )


app = make_app()
plan = app.definition("async_content_job").plan


def __getattr__(name: str) -> App:
    found = variant(name, make_app, (*STEPS, *web.STEPS), "asr_demo.page.companion:notes")
    if found is None:
        raise AttributeError(name)
    return found
