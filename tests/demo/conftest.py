"""Services for the tests of the demo: one shared by all that only ask, fresh ones for those that disturb."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from asr_demo.asr_client import Succeeded
from tests.demo.asr_process import AsrProcess
from tests.demo.page_stage import Site, Stage
from tests.demo.sound import BUNDLED, FIRST_SENTENCE_S, cut
from tests.support.redis_servers import RedisTarget


@pytest.fixture(scope="session")
def shared_asr(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsrProcess]:
    """A running service without faults. Its counts move under other tests: compare before and after."""
    service = AsrProcess(tmp_path_factory.mktemp("shared_asr"))
    try:
        service.start()
        yield service
        assert service.stop() == 0
    finally:
        service.close()


@pytest.fixture(scope="session")
def transcription(shared_asr: AsrProcess) -> Succeeded:
    """The bundled recording as the service reads it: recognised once for all tests."""
    task = shared_asr.client().submit(BUNDLED, idempotency_key="transcription")
    return shared_asr.result(task.task_id)


@pytest.fixture
def asr(tmp_path: Path) -> Iterator[AsrProcess]:
    """A service of this test's own, not yet started."""
    service = AsrProcess(tmp_path / "data")
    try:
        yield service
    finally:
        service.close()


@pytest.fixture
def sentence(asr: AsrProcess) -> Path:
    """The first sentence of the talk, where the test's own service may read it."""
    folder = asr.data_dir / "audio"
    folder.mkdir(parents=True)
    return cut(folder / "sentence.wav", FIRST_SENTENCE_S)


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first eleven seconds of the bundled talk: as real, and recognised in a quarter of the time."""
    return cut(tmp_path_factory.mktemp("clip") / "clip.wav", 11.0)


@pytest.fixture
def stage(valkey: RedisTarget, tmp_path: Path) -> Iterator[Stage]:
    """Notes, a store and a Redis, and what a worker would write to them: the page's surroundings."""
    stage = Stage(valkey, tmp_path)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture
def site(stage: Stage) -> Iterator[Site]:
    """The page in this process, in front of the stage."""
    with stage.served() as site:
        yield site
