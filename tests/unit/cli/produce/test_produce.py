"""`pipeline produce`: lines with keys, and lines without."""

import sys

import trio
from typer.testing import CliRunner

from pipeline.cli.main import app
from pipeline.model import TopicPartition
from tests.support.scripted_broker import ScriptedCluster


def test_an_empty_key_separator_is_wrong_usage() -> None:
    shown = CliRunner().invoke(app, ["produce", "t", "-K", "", "-b", "127.0.0.1:1"])
    assert shown.exit_code == 2
    assert "--key-separator" in shown.output


async def test_a_key_separator_is_the_bytes_that_were_given_and_no_line_is_without() -> None:
    scripted = ScriptedCluster()
    scripted.add_topic("t", [1])
    async with scripted.broker(1) as address:
        command: list[str | bytes] = [
            sys.executable,
            "-m",
            "pipeline",
            "produce",
            "t",
            "-K",
            b"\xff",
            "-b",
            str(address),
        ]
        done = await trio.run_process(
            command, stdin=b"key\xffvalue\nvalue alone\nk\xffv\n", capture_stdout=True, capture_stderr=True, check=False
        )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"pipeline: line 2 does not contain the separator '\\\\xff'; 1 record published\n"
    records = scripted.partition(TopicPartition("t", 0)).records()
    assert [(record.key, record.value) for record in records] == [(b"key", b"value")]
