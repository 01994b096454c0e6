"""The status of a mirror while the broker of a source is stopped by SIGSTOP: connections stay open, unanswered."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.cli.demo.datacenters import Datacenters
from tests.support.traffic import make_topic

TOPIC = "clicks"
DEADLINE_S = 90


async def status(datacenters: Datacenters, *options: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `pipeline mirror status`."""
    command = [sys.executable, "-m", "pipeline", "mirror", "status", "--mirror", datacenters.mirror.url, *options]
    done = await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def lags(datacenters: Datacenters, source: str) -> list[Any]:
    _, text, _ = await status(datacenters, "--json")
    (found,) = [each for each in json.loads(text)["sources"] if each["name"] == source]
    return [partition["lag"] for partition in found["partitions"]]


@pytest.mark.long
async def test_a_source_that_is_stopped_has_unknown_lag_until_it_continues(tmp_path: Path) -> None:
    async with Datacenters(tmp_path, [TOPIC]) as datacenters:
        await make_topic(datacenters, TOPIC)
        with trio.fail_after(DEADLINE_S):
            while (await status(datacenters))[0] != 0:
                await trio.sleep(1)
        assert set(await lags(datacenters, "east")) == {0}
        pid = datacenters.pids["east-broker"]
        os.kill(pid, signal.SIGSTOP)
        try:
            with trio.fail_after(DEADLINE_S):
                while set(await lags(datacenters, "east")) != {None}:
                    await trio.sleep(1)
            code, text, reason = await status(datacenters)
            assert code == 1
            assert "unknown" in text
            assert "of east with unknown lag" in reason
            assert set(await lags(datacenters, "west")) == {0}
        finally:
            os.kill(pid, signal.SIGCONT)
        with trio.fail_after(DEADLINE_S):
            while (await status(datacenters))[0] != 0:
                await trio.sleep(1)
        await datacenters.mirror.stop()
        log = [json.loads(line) for line in (tmp_path / "mirror" / "mirror.log").read_text().splitlines()]
        events = {line["event"]: line for line in log}
        assert events["starting"]["version"]
        assert events["mirror_ready"]["sources"].keys() == {"east", "west"}
        assert events["stopping"]["signal"] == "SIGTERM"
        assert log[-1]["event"] == "stopped"
