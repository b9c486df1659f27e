"""What an author declares, and everything that is refused when it is declared (groups 14 and 25)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from kernel.app import App, Companion
from kernel.config import Limit
from kernel.definition import STEPS_MAX, Definition, Plan, PlanStep, RetryPolicy, Step, plan
from kernel.errors import InvalidDefinition, InvalidInput, InvalidName, UnknownType


def nothing(ctx: Any) -> None:
    return None


class JobInput(msgspec.Struct):
    tenant_id: str
    object_id: str


def definition(*steps: Step, **options: Any) -> Definition:
    return Definition(type="job", steps=steps, **options)


def a(**options: Any) -> Step:
    return Step("a", nothing, **options)


@pytest.mark.req("spl-definition-contents", "spl-instance-contents")
def test_a_definition_holds_what_the_specification_names_and_gives_a_plan() -> None:
    retry = RetryPolicy(max_attempts=10, initial_interval=timedelta(seconds=0.5), max_interval=timedelta(seconds=30))
    made = Definition(
        type="async_content_job",
        input=JobInput,
        identity=("tenant_id", "object_id"),
        steps=[
            Step("preprocess", nothing, timeout=timedelta(seconds=30), max_retry=2),
            Step(
                "transcribe_audio",
                nothing,
                timeout=timedelta(minutes=30),
                resource="speech_recognition",
                checkpoint=int,
            ),
            Step("compose_content", nothing, resource="content_generation", streams=True, output=str),
            Step("finalize", nothing, retry=retry, on_failed="skip", depends_on=["compose_content"]),
        ],
        success_finalizer=nothing,
        failure_finalizer=nothing,
        prepare=nothing,
    )

    assert made.plan == plan(
        "async_content_job",
        ["preprocess", "transcribe_audio", "compose_content", "finalize"],
        input=JobInput,
        identity=("tenant_id", "object_id"),
        streams=True,
    )
    assert [step.attempts_max for step in made.steps] == [3, 1, 1, 10]
    assert [step.timeout_ms for step in made.steps] == [30_000, 1_800_000, 300_000, 300_000]
    assert made.steps[0].on_failed == "stop"
    with pytest.raises(AttributeError):
        made.type = "other"  # type: ignore[misc]


@pytest.mark.parametrize("unknown", [{"deadline": 1}, {"depends": []}, {"maxRetry": 1}])
@pytest.mark.req("spl-definition-contents")
def test_an_unknown_option_is_refused(unknown: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(unknown))):
        a(**unknown)
    with pytest.raises(TypeError, match=next(iter(unknown))):
        definition(a(), **unknown)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "must have 1–200 steps, has 0"),
        ([a(), a()], "two steps are named 'a'"),
        ([a(depends_on=["a"])], "step 'a' depends on itself"),
        ([a(depends_on=["b"])], "step 'a' depends on unknown step 'b'"),
        ([a(depends_on=["b"]), Step("b", nothing)], "a, b depend on each other in a cycle"),
        ([a(depends_on=["c"]), Step("b", nothing), Step("c", nothing)], "a, b, c depend on each other in a cycle"),
        ([a(), "b"], "steps must be Step values, got str"),
    ],
)
@pytest.mark.req("dag-validate")
def test_a_graph_that_can_not_be_run_is_refused_when_it_is_declared(steps: Any, words: str) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        definition(*steps)
    assert words in str(caught.value)
    assert str(caught.value).startswith("job: ")


@pytest.mark.req("dag-validate")
def test_the_number_of_steps_is_bounded() -> None:
    names = [f"s{k}" for k in range(STEPS_MAX + 1)]

    assert len(plan("job", names[:-1]).steps) == STEPS_MAX
    with pytest.raises(InvalidDefinition, match="has 201"):
        plan("job", names)


@pytest.mark.parametrize("name", ["", "A", "a.b", "$set", "a" * 65, "1", None])
@pytest.mark.req("dag-validate")
def test_names_that_are_none_are_refused_everywhere(name: Any) -> None:
    with pytest.raises(InvalidName, match=r"Step\.name"):
        Step(name, nothing)
    with pytest.raises(InvalidName, match=r"Definition\.type"):
        Definition(type=name, steps=[a()])
    with pytest.raises(InvalidName, match=r"Plan\.type"):
        plan(name, ["a"])
    with pytest.raises(InvalidName, match="step name"):
        Plan("job", (PlanStep(name, ()),))
    if name is not None:
        with pytest.raises(InvalidName, match="resource"):
            a(resource=name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": timedelta(0)}, "timeout"),
        ({"timeout": timedelta(seconds=-1)}, "timeout"),
        ({"timeout": timedelta(days=31)}, "timeout"),
        ({"timeout": 30}, "timeout"),
        ({"max_retry": -1}, "max_retry"),
        ({"max_retry": 1.5}, "max_retry"),
        ({"max_retry": True}, "max_retry"),
        ({"max_retry": 1, "retry": RetryPolicy()}, "not both"),
        ({"on_failed": "ignore"}, "on_failed"),
    ],
)
def test_a_step_option_out_of_range_is_refused_with_step_and_rule(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        a(**options)
    assert "step 'a'" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("activity", [None, "module:function", 3])
def test_an_activity_has_to_be_callable(activity: Any) -> None:
    with pytest.raises(InvalidDefinition, match="step 'a': activity is not callable"):
        Step("a", activity)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"success_finalizer": "f"}, "success_finalizer is not callable"),
        ({"failure_finalizer": 1}, "failure_finalizer is not callable"),
        ({"prepare": []}, "prepare is not callable"),
        ({"on_poison": "ignore"}, "on_poison"),
        ({"on_changed_plan": "guess"}, "on_changed_plan"),
        ({"input": JobInput, "identity": ("colour",)}, "identity field 'colour'"),
    ],
)
def test_a_definition_option_that_can_not_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        definition(a(), **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"initial_interval": timedelta(seconds=-1)},
        {"initial_interval": timedelta(seconds=9), "max_interval": timedelta(seconds=8)},
        {"backoff": 0.5},
        {"jitter": -0.1},
        {"jitter": 1.1},
    ],
)
def test_a_retry_policy_out_of_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidDefinition, match="RetryPolicy"):
        RetryPolicy(**options)


@pytest.mark.req("dbo-opt-interval", "dbo-opt-backoff", "dbo-opt-max-interval")
def test_delays_grow_to_their_bound_and_never_overflow() -> None:
    policy = RetryPolicy(max_attempts=10, initial_interval=timedelta(seconds=0.5), max_interval=timedelta(seconds=30))

    assert [policy.delay_ms(n, 0.5) for n in range(1, 9)] == [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]
    assert RetryPolicy(backoff=1e6).delay_ms(10_000, 0.5) == 3_600_000
    assert RetryPolicy().delay_ms(1, 0.5) == 1_000
    assert RetryPolicy().max_interval == timedelta(hours=1)


def test_jitter_spreads_a_delay_evenly_around_it() -> None:
    policy = RetryPolicy(initial_interval=timedelta(seconds=10), jitter=0.1)

    assert [policy.delay_ms(1, fraction) for fraction in (0.0, 0.25, 0.5, 0.999_999)] == [9_000, 9_500, 10_000, 11_000]


def test_an_input_is_checked_against_its_declared_type() -> None:
    typed = plan("job", ["a"], input=JobInput)

    typed.check_input(b"\x01" + msgspec.msgpack.encode({"tenant_id": "t", "object_id": "o"}))
    with pytest.raises(InvalidInput, match=r"input of job: .*object_id"):
        typed.check_input(b"\x01" + msgspec.msgpack.encode({"tenant_id": "t"}))
    plan("job", ["a"]).check_input(b"\x01\xc1")


# --- applications ------------------------------------------------------------------------------------------


@pytest.mark.req("spl-registries")
def test_an_app_finds_its_definitions_and_names_those_that_exist() -> None:
    app = App(definitions=[definition(a()), Definition(type="other", steps=[a()])], limits={"speech": Limit(8, 2)})

    assert app.definition("other").type == "other"
    with pytest.raises(UnknownType, match="'third' is not registered here; registered: job, other"):
        app.definition("third")
    with pytest.raises(UnknownType, match="registered: none"):
        App().definition("job")


def test_two_definitions_of_one_type_are_refused() -> None:
    with pytest.raises(InvalidDefinition, match="two definitions have the type 'job'"):
        App(definitions=[definition(a()), definition(a(), a(depends_on=[]).__class__("b", nothing))])


@pytest.mark.parametrize(("name", "role"), [("Web", "m:f"), ("web", "m"), ("web", ":f"), ("web", "m:")])
def test_a_companion_without_name_or_role_is_refused(name: str, role: str) -> None:
    with pytest.raises((InvalidDefinition, InvalidName)):
        Companion(name, role)


def test_a_limit_of_a_resource_that_has_no_name_is_refused() -> None:
    with pytest.raises(InvalidName, match="limits"):
        App(limits={"Speech!": Limit()})


@pytest.mark.req("fpr-plan-definition-match")
def test_a_publishers_plan_that_is_another_version_is_refused_where_both_are_known() -> None:
    made = definition(a(), Step("b", nothing))

    assert App(definitions=[made], plans=[plan("job", ["a", "b"]), plan("other", ["x"]), made.plan]).definitions
    with pytest.raises(InvalidDefinition) as refused:
        App(definitions=[made], plans=[plan("job", ["a", ("b", [])])])

    text = str(refused.value)
    assert text.startswith("the Plan of 'job' has the fingerprint ")
    assert made.plan.fingerprint in text and plan("job", ["a", ("b", [])]).fingerprint in text
    assert "[('a',), ('b',)] are not [('a',), ('b', 'a')]" in text


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), float("inf"), 10**12, "3", True, None])
@pytest.mark.parametrize("field", ["max_concurrency", "max_starts_per_second"])
def test_a_limit_that_no_setting_could_say_is_refused_where_it_is_declared(field: str, value: Any) -> None:
    with pytest.raises(InvalidDefinition, match=rf"App.limits: speech: .*`\$.{field}`"):
        App(limits={"speech": Limit(**{field: value})})


def test_what_is_no_limit_is_refused() -> None:
    with pytest.raises(InvalidDefinition, match="speech: expected a Limit, got int"):
        App(limits={"speech": 3})  # type: ignore[dict-item]
