"""`pipeline mirror verify`: what it prints, and its exit codes."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.cli.mirror.verify import details_of
from pipeline.cli.terminal.output import EXIT_FAILED, EXIT_NOT_COMPARED, EXIT_USAGE
from pipeline.client.admin.offsets import delete_records
from tests.support.brokers import serving_cluster
from tests.support.mirrors import CLICKS, DEADLINE_S, Site, batch_at, make, mirroring_of, publish, put, until_copied
from tests.support.partition_tables import JOURNAL

VALUES = [b"value %d" % number for number in range(20)]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """East is mirrored to the hub; the mirror has ended."""
    async with serving_cluster(tmp_path / "east") as east, serving_cluster(tmp_path / "hub") as hub:
        site = Site(east, east, hub)
        await make(east)
        await publish(east, *VALUES)
        async with mirroring_of(hub, east=east):
            await until_copied(hub, CLICKS, *VALUES)
        yield site


@pytest.fixture
def settings(site: Site) -> str:
    return (
        f'destination.bootstrap.servers = "{site.hub.config.bootstrap[0]}"\ntopics = ["clicks"]\n'
        f'http.listen = "127.0.0.1:0"\n[[sources]]\nname = "east"\n'
        f'bootstrap.servers = "{site.east.config.bootstrap[0]}"\n'
    )


@pytest.fixture
def config(tmp_path: Path, settings: str) -> Path:
    path = tmp_path / "mirror.toml"
    path.write_text(settings)
    return path


async def run(config: Path, *options: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "pipeline", "mirror", "verify", "--config", str(config), *options]
    with trio.fail_after(2 * DEADLINE_S):
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_equal_replicas_end_with_0_and_different_ones_with_1(site: Site, config: Path) -> None:
    code, out, err = await run(config)
    assert (code, err) == (0, "")
    heading, line = out.splitlines()
    assert heading.split() == ["SOURCE", "PARTITION", "REPLICA", "FROM", "UP-TO", "RECORDS", "BYTES", "LAG", "VERDICT"]
    assert line.split()[:6] == ["east", "clicks-0", "clicks-0", "0", "20", "20"]
    assert line.endswith("equal")
    await put(site.hub, batch_at(20, b"nobody wrote this"))
    code, out, _ = await run(config, "clicks", "--deep")
    assert code == EXIT_FAILED
    assert "east/clicks-0: offsets 20 to 20: extra at the replica: the source ends at offset 20" in out
    code, out, _ = await run(config, "--json")
    (partition,) = json.loads(out)["partitions"]
    assert (code, partition["verdict"], partition["records"]) == (EXIT_FAILED, "different", 20)
    assert partition["differences"][0]["kind"] == "extra at the replica"


@pytest.mark.long
async def test_recompressed_replicas_end_with_0_and_a_line(site: Site, config: Path) -> None:
    values = [b"GET /pages/%d HTTP/1.1 " % number * 40 for number in range(3)]
    await publish(site.east, *values)
    async with mirroring_of(site.hub, None, {"compression_type": "zstd"}, east=site.east):
        await until_copied(site.hub, CLICKS, *VALUES, *values)
    code, out, err = await run(config)
    assert (code, err) == (0, "")
    _, line, remark = out.splitlines()
    assert line.endswith("equal")
    assert "east/clicks-0: contents of" in remark
    await publish(site.east, values[0])
    await put(site.hub, batch_at(23, values[1]))
    code, out, _ = await run(config)
    assert code == EXIT_FAILED
    assert "east/clicks-0: offsets 23 to 23: other content" in out


@pytest.mark.long
async def test_what_cannot_be_compared_ends_with_5(site: Site, config: Path, settings: str) -> None:
    code, out, err = await run(config, "nowhere")
    assert (code, out) == (EXIT_NOT_COMPARED, "")
    assert "no replica topic nowhere" in err
    await trio.Path(config).write_text(settings.replace('name = "east"', 'name = "west"'))
    code, out, _ = await run(config)
    assert code == EXIT_NOT_COMPARED
    assert "not compared: the settings have no source east" in out
    await trio.Path(config).write_text(settings.replace("topics =", "topic ="))
    assert (await run(config))[0] == EXIT_USAGE


async def test_a_source_without_records_leaves_nothing_to_compare(site: Site, config: Path) -> None:
    await delete_records(site.east, {CLICKS: 20}, timeout_s=DEADLINE_S)
    code, out, _ = await run(config)
    assert code == 0
    assert out.splitlines()[1].endswith("nothing to compare")


@pytest.mark.long
async def test_a_table_without_its_records_ends_with_5(site: Site, config: Path) -> None:
    await delete_records(site.hub, {JOURNAL: 1}, timeout_s=DEADLINE_S)
    code, out, err = await run(config)
    assert (code, out) == (EXIT_NOT_COMPARED, "")
    assert "_mirror_partitions does not name all replicas: records before offset 1 were deleted" in err


def test_each_difference_and_each_reason_has_a_line() -> None:
    nothing = {"batches": 0, "records": 0, "bytes": 0}
    difference = {"kind": "missing at the replica", "first_offset": 4, "last_offset": 9, "detail": None}
    document: dict[str, Any] = {
        "source": "east",
        "topic": "clicks",
        "partition": 3,
        "reason": "broker 1\x1b is gone",
        "differences": [{**difference, "source": {"batches": 2, "records": 6, "bytes": 700}, "replica": nothing}],
        "more_differences": 1,
        "batches_by_contents": 1,
        "not_compared": [{"from_offset": 0, "up_to_offset": 4, "reason": "compacted"}],
    }
    assert details_of(document) == [
        "east/clicks-3: not compared: broker 1\\x1b is gone",
        "east/clicks-3: offsets 4 to 9: missing at the replica: source 6 records in 700 bytes and 2 batches, "
        "replica nothing",
        "east/clicks-3: 1 more difference",
        "east/clicks-3: contents of 1 batch were compared, and not bytes, which differ by recompression",
        "east/clicks-3: offsets 0 to 3: not compared: compacted",
    ]
