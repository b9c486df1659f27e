"""Identities: tokens that can not repeat, a workflow_id that is derived, and what is accepted as a name or key."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.errors import InvalidId, InvalidName
from kernel.ids import RandomIds, SeededIds, check_id, check_name, workflow_id_for


@pytest.mark.req("id-token-quality", "id-claim-token")
def test_tokens_are_128_random_bits_and_never_repeat() -> None:
    """Two sources of one process, and of two processes, share nothing that could make them count alike."""
    tokens = {source.token() for source in (RandomIds(), RandomIds()) for _ in range(5_000)}
    code = "from kernel.ids import RandomIds; print(RandomIds().token())"
    others = {subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(2)}

    assert len(tokens) == 10_000
    assert all(re.fullmatch(r"[0-9a-f]{32}", token) for token in tokens)
    assert len(others) == 2
    bits = sum(int(token, 16).bit_count() for token in tokens) / len(tokens)
    assert 62 < bits < 66, "half of the bits are set, on average"


def test_a_seeded_source_repeats_itself_and_no_other() -> None:
    first, again, other = SeededIds(1), SeededIds(1), SeededIds(2)

    assert [first.token() for _ in range(9)] == [again.token() for _ in range(9)]
    assert first.token() != other.token()
    assert all(0 <= first.fraction() < 1 for _ in range(99))


@pytest.mark.req("id-workflow-id")
def test_the_workflow_id_is_derived_from_the_key_for_ever() -> None:
    """Golden values: a subscriber may be addressed before its instance exists, by any release."""
    assert workflow_id_for("job:t1:42") == "wf-989445222b0ed80b1f1021c6d2569ee5"
    assert workflow_id_for("k") == "wf-8254c329a92850f6d539dd376f4816ee"
    assert workflow_id_for("kä") != workflow_id_for("ka")


@given(st.text(max_size=70))
def test_a_name_is_a_lower_case_word_of_at_most_64_characters(text: str) -> None:
    if re.fullmatch(r"[a-z][a-z0-9_]{0,63}", text):
        assert check_name(text, "Step.name") == text
    else:
        with pytest.raises(InvalidName, match=r"Step\.name"):
            check_name(text, "Step.name")


@pytest.mark.parametrize(
    "name", ["a.b", "$set", "", "A", "1a", "a-b", "a b", "ä", "a" * 65, "a\n", "\0", None, 3, b"a"]
)
def test_what_could_be_a_path_or_an_operator_is_no_name(name: Any) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name(name, "signal")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("key", ["a", "job:t1:42", "ä" * 200, "emoji 🎈", "{x}*?[]\\", " a", "x" * 200])
def test_printable_text_is_a_key(key: str) -> None:
    assert check_id(key, "biz_key") == key


@pytest.mark.parametrize(
    "key", ["", " ", "  ", "\t", "a\r\nb", "\0", "a\x7f", "\u200b", "\ud800", "x" * 201, None, 1, b"a"]
)
@pytest.mark.case("A22")
def test_empty_unprintable_or_overlong_text_is_no_key(key: Any) -> None:
    with pytest.raises(InvalidId, match="biz_key") as caught:
        check_id(key, "biz_key")
    assert str(caught.value).isprintable()


@given(st.text(max_size=210))
def test_whatever_is_accepted_as_a_key_can_be_stored_and_shown(text: str) -> None:
    try:
        key = check_id(text, "key")
    except InvalidId:
        return
    assert 1 <= len(key) <= 200
    assert key.isprintable()
    assert key.encode().decode() == key
