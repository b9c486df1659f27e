"""What users put into a workflow is stored as it is and never read as a path, an operator or a statement (A76)."""

from __future__ import annotations

import pytest

from kernel import codec
from kernel import transitions as make
from kernel.records import ErrorRecord
from kernel.store.conditional import Applied, Duplicate, Insert, Inserted
from kernel.store.protocol import Store
from kernel.store.tables import INSTANCES
from kernel.transitions import Held
from tests.conformance.instances import TOKEN, claimed, instance_document, put, read, row, step_document

BYTES_MAX = 256 * 1024
VALUES = (
    {"$set": {"status": "completed"}, "a.b": 1, "": 2, "$where": "1", "__proto__": None},
    {"nul\0key": "nul\0value", "ключ": ["\u2028", "\ud7ff", "💣"], "'; DROP TABLE workflow_instances; --": "?"},
    [[[[]]], {}, None, True, 1.5, -(2**63), 2**63 - 1, "", b"\x00\xff".hex()],
    "x" * 60_000,
    None,
)
IDS = (
    *("$set", "a.b", "steps.0.status", "{'$gt': ''}", "'; DROP TABLE workflow_instances; --", "%", "*", "?", ":id"),
    *("\u00e9", "e\u0301", "💣" * 50, "x" * 200, "A", "a", "0", "00", "1", "1.0", "1e0", "true", "null", " x", "x "),
)


@pytest.mark.case("A76")
@pytest.mark.parametrize("value", VALUES, ids=["operators", "texts", "scalars", "large", "null"])
def test_inputs_checkpoints_and_outputs_come_back_as_they_were(value: object, store: Store) -> None:
    """They are bytes made by the codec: no key of a user's map is ever a field name."""
    data = codec.encode(value, "value", BYTES_MAX)
    fields = {**claimed(), "input": data, "steps": [step_document(0, "running", checkpoint=data), step_document(1)]}
    put(store, instance_document("wf", store.now_ms(), **fields))

    instance = read(store, "wf")
    done = make.complete_step(
        Held("wf", TOKEN), instance, 0, output=data, elapsed_ms=1, worker_id="w", begin_next=1, commit_id="c"
    )
    assert isinstance(store.apply(done), Applied)

    after = read(store, "wf")
    found = (after.input, after.steps[0].checkpoint, after.outputs["step_0"])
    assert found == (data, data, data)
    assert [codec.decode(item, object, "value") for item in found] == [value] * 3
    assert after.status == "running"


@pytest.mark.case("A76")
def test_keys_that_look_like_something_else_are_keys(store: Store) -> None:
    """Each is its own row, found by exactly itself, and can be written to."""
    inserts = [
        Insert("create", INSTANCES, key, instance_document(key, store.now_ms(), biz_key=f"biz {key}")) for key in IDS
    ]
    assert [type(answer) for answer in store.insert_all(inserts)] == [Inserted] * len(IDS)

    for key in IDS:
        assert isinstance(store.apply(make.raise_priority(key, 0)), Applied), key
        found = store.find(INSTANCES, "biz_key", f"biz {key}")
        assert found == row(store, key)
        assert found["business_priority"] == 0
    assert store.insert(inserts[3]) == Duplicate("workflow_id")


@pytest.mark.case("A76")
def test_an_error_message_is_only_a_text(store: Store) -> None:
    message = "$inc: {'steps.0.attempt': 9} \0 '; -- é\n\u2029"
    error = ErrorRecord(code="kernel_error", type="a.$b", message=message, attempt=1)
    put(store, instance_document("wf", store.now_ms(), **claimed(), steps=[step_document(0, "running")]))

    failed = make.fail_step(Held("wf", TOKEN), 0, error=error, elapsed_ms=1, failing=True, commit_id="c")
    assert isinstance(store.apply(failed), Applied)

    instance = read(store, "wf")
    assert instance.error == instance.steps[0].error == instance.steps[0].errors[0] == error


def test_a_token_from_outside_is_compared_and_not_interpreted(store: Store) -> None:
    put(store, instance_document("wf", store.now_ms(), **claimed("$claim_token")))

    for token in ("$worker_id", "", "$claim_toke", "%", "*"):
        assert not isinstance(store.apply(make.renew(Held("wf", token), 5)), Applied), token
    assert isinstance(store.apply(make.renew(Held("wf", "$claim_token"), 5)), Applied)
