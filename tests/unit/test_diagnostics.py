"""Where events go: in a program that configured structlog, and in one that did not."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from pipeline.diagnostics import get_logger

PROGRAM = """
import random, trio
from pipeline.client import (
    ClientConfig, ProducerConfig, ProducerInterceptor, open_cluster, open_producer, parse_addresses
)
from pipeline.errors import PipelineError

class Faulty(ProducerInterceptor):
    def on_send(self, record):
        raise ValueError("a fault")

async def main():
    async with open_cluster(ClientConfig(bootstrap=parse_addresses("127.0.0.1:1"))) as cluster:
        settings = ProducerConfig(max_block_ms=10)
        async with open_producer(
            cluster, settings, clock=lambda: 0, rng=random.Random(1), interceptors=[Faulty()]
        ) as producer:
            try:
                await producer.send("t", b"value")
            except PipelineError:
                print("output of the program")

trio.run(main)
"""


@pytest.fixture
def unconfigured() -> Iterator[None]:
    before, was_configured = structlog.get_config(), structlog.is_configured()
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    if was_configured:
        structlog.configure(**before)


def test_stdout_is_the_programs_own() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "output of the program\n"
    assert done.stderr.startswith("interceptor_failed method='on_send' topic='t'\nTraceback")
    assert "ValueError: a fault" in done.stderr


@pytest.mark.usefixtures("unconfigured")
def test_programs_hear_of_events_by_logging(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = get_logger("pipeline.client.somewhere")
    with caplog.at_level(logging.INFO, "pipeline.client"):
        logger.debug("unheard")
        logger.info("heard", partition="t-0", number=3, text="two\nlines 100%s")
        logger.warning("warned")
        logger.error("failed", exc_info=ValueError("given"))
        try:
            raise ValueError("caught")
        except ValueError:
            logger.exception("caught", name="x")
    heard = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert heard == [
        ("pipeline.client.somewhere", "INFO", r"heard partition='t-0' number=3 text='two\nlines 100%s'"),
        ("pipeline.client.somewhere", "WARNING", "warned"),
        ("pipeline.client.somewhere", "ERROR", "failed"),
        ("pipeline.client.somewhere", "ERROR", "caught name='x'"),
    ]
    assert {record.pathname for record in caplog.records} == {__file__}
    assert [record.exc_info is not None for record in caplog.records] == [False, False, True, True]
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("unconfigured")
def test_a_program_that_configured_structlog_gets_fields() -> None:
    logger = get_logger("pipeline.client.somewhere")
    with capture_logs() as heard:
        logger.info("heard", partition="t-0")
        logger.exception("failed")
    assert heard == [
        {"event": "heard", "partition": "t-0", "log_level": "info"},
        {"event": "failed", "exc_info": True, "log_level": "error"},
    ]
