"""The version mark of a Definition: what changes it, what does not, and golden values (group 24)."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.definition import Definition, RetryPolicy, Step, plan
from kernel.fingerprint import fingerprint
from tests.engine.flows import seconds
from tests.support.requirements_index import CHECKOUT


def nothing(ctx: Any) -> None:
    return None


def something(ctx: Any) -> int:
    return 1


GOLDEN = {
    plan("job", ["a"]): "bbace23563634838bd6da02144481a17804cc9395f7087fce12f346c10054391",
    plan("job", ["a", "b", ("c", ["a", "b"])]): "cb86964f5f182a4ee88212f99315cde5e1ca059ad28b641ed9476b6a12968d2b",
    plan(
        "async_content_job", ["preprocess", "transcribe_audio", "compose_content", "finalize"]
    ): "ee3ebc1d30947603f280d52e443b1e92c187cd8b9497f045039aaae9559838ee",
}
"""Marks that stored instances bear: a release that computes others would leave every living instance behind."""


def by_hand(*parts: str) -> str:
    """The rule of the specification, written out: every part with its length in front, SHA-256."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part.encode()).to_bytes(4, "big") + part.encode())
    return digest.hexdigest()


@pytest.mark.req("fpr-sha256", "fpr-length-prefix", "fpr-content")
def test_the_digest_is_sha256_over_length_prefixed_parts() -> None:
    made = fingerprint("job", [("a", []), ("b", ["a"]), ("c", ["b", "a"])])

    assert made == by_hand("job", "a", "0", "b", "1", "a", "c", "2", "a", "b")
    assert len(made) == 64


@pytest.mark.req("fpr-sha256")
def test_the_digest_is_the_same_in_every_process() -> None:
    code = "from kernel import plan; print(plan('job', ['a', 'b', ('c', ['a', 'b'])]).fingerprint)"
    seeds = ("0", "1", "4242")
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=CHECKOUT, env={"PYTHONHASHSEED": seed}
        ).stdout.strip()
        for seed in seeds
    }

    assert found == {GOLDEN[plan("job", ["a", "b", ("c", ["a", "b"])])]}


@pytest.mark.parametrize(("made", "mark"), GOLDEN.items(), ids=lambda value: getattr(value, "type", None))
@pytest.mark.req("fpr-sha256")
def test_golden_marks_do_not_change(made: Any, mark: str) -> None:
    assert made.fingerprint == mark


@pytest.mark.parametrize(
    "other",
    [
        plan("job2", ["a", "b", "c"]),
        plan("job", ["a", "b"]),
        plan("job", ["a", "b", "c", "d"]),
        plan("job", ["a", "x", "c"]),
        plan("job", ["b", "a", "c"]),
        plan("job", ["a", "b", ("c", ["a"])]),
        plan("job", ["a", ("b", []), "c"]),
        plan("job", ["a", "b", ("c", ["a", "b"])]),
    ],
)
@pytest.mark.req("fpr-content")
def test_type_names_order_and_dependencies_change_it(other: Any) -> None:
    assert other.fingerprint != plan("job", ["a", "b", "c"]).fingerprint


@pytest.mark.req("fpr-length-prefix")
def test_where_one_part_ends_and_the_next_begins_is_part_of_it() -> None:
    assert fingerprint("j", [("ab", []), ("c", [])]) != fingerprint("j", [("a", []), ("bc", [])])
    assert fingerprint("ja", [("b", [])]) != fingerprint("j", [("ab", [])])
    assert fingerprint("j", [("a", []), ("b", ["a"]), ("c", [])]) != fingerprint(
        "j", [("a", []), ("b", []), ("c", ["a"])]
    )


@pytest.mark.req("fpr-sorted-deps")
def test_the_order_in_which_dependencies_are_named_does_not_count() -> None:
    first = plan("job", ["a", ("b", []), ("c", ["a", "b"])])
    second = plan("job", ["a", ("b", []), ("c", ["b", "a"])])

    assert first.fingerprint == second.fingerprint


@pytest.mark.req("fpr-normalise")
def test_the_implicit_step_before_is_made_explicit() -> None:
    assert plan("job", ["a", "b"]).fingerprint == plan("job", [("a", []), ("b", ["a"])]).fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        {"activity": something}, {"timeout": seconds(7)}, {"max_retry": 3}, {"resource": "speech"},
        {"on_failed": "skip"},
        {"retry": RetryPolicy()}, {"checkpoint": int}, {"output": str}, {"streams": True},
    ],
    ids=lambda changed: next(iter(changed)),
)  # fmt: skip
@pytest.mark.req("fpr-excludes")
def test_how_a_step_is_run_is_not_part_of_it(changed: dict[str, Any]) -> None:
    plain = Definition(type="job", steps=[Step("a", nothing)])
    other = Definition(type="job", steps=[Step("a", **({"activity": nothing} | changed))])

    assert other.plan.fingerprint == plain.plan.fingerprint


@pytest.mark.parametrize(
    "options",
    [{"success_finalizer": nothing}, {"failure_finalizer": nothing}, {"prepare": nothing}, {"input": int},
     {"identity": ("a",)}, {"on_changed_plan": "fresh_run"}, {"on_poison": "fail"}],
    ids=lambda options: next(iter(options)),
)  # fmt: skip
@pytest.mark.req("fpr-excludes")
def test_what_surrounds_the_steps_is_not_part_of_it(options: dict[str, Any]) -> None:
    steps = [Step("a", nothing)]

    assert Definition(type="job", steps=steps, **options).plan.fingerprint == plan("job", ["a"]).fingerprint


names = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)


@given(st.lists(names, min_size=1, max_size=6, unique=True), st.lists(names, min_size=1, max_size=6, unique=True))
@pytest.mark.req("fpr-content", "fpr-length-prefix")
def test_different_chains_have_different_marks(first: list[str], second: list[str]) -> None:
    same = plan("job", first).fingerprint == plan("job", second).fingerprint

    assert same is (first == second)


@pytest.mark.req("fpr-content")
def test_the_key_that_claims_compare_is_type_and_mark() -> None:
    made = plan("job", ["a"])

    assert made.key == f"job@{made.fingerprint}"
