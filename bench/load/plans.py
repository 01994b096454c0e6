"""The plan of a load of 2,000 partitions, for a new table and for one with 10,000 commits."""

import time
from pathlib import Path

from bench.broker.clients import confluent, create_topic, delete_topic
from bench.broker.servers import Server
from bench.report import Options, Row, Show, Target
from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.commit.manifest import DataFile, Manifest, sha256_of
from pipeline.hadoop.load import LoadConfig
from pipeline.hadoop.load.job import prepare_load

PARTITIONS = 2000
COMMITS = 10_000
NAMES = {0: "plan of 2,000 partitions, new table", COMMITS: "plan of 2,000 partitions, after 10,000 commits"}
TARGET = Target(bound=2, at_least=False, absolute=True)
RECORD_BYTES = 100


def measure_plans(options: Options, server: Server, directory: Path, show: Show) -> list[Row]:
    """Seconds that each plan takes, in a process that has planned before."""
    wanted = {commits: name for commits, name in NAMES.items() if options.selects(name)}
    if not wanted:
        return []
    show(f"creating {PARTITIONS} partitions")
    topic = create_topic(server, PARTITIONS)
    asked = {"action": "produce", "records": PARTITIONS, "record_bytes": RECORD_BYTES, "codec": "none", "acks": "all"}
    confluent(server, topic, {**asked, "partitions": PARTITIONS})
    rows = []
    for commits, name in wanted.items():
        show(name)
        root = directory / str(commits)
        _write_commits(root, topic, commits)
        settings = {"bootstrap.servers": server.bootstrap, "topic": topic, "root": f"file://{root}"}
        config = LoadConfig.from_settings({**settings, "value.format": "binary"})
        _plan(config)
        seconds, ranges = _plan(config)
        error = "" if ranges == PARTITIONS else f"{ranges} ranges were planned"
        rows.append(Row(name=name, unit="s", ours=seconds, target=TARGET, error=error))
    delete_topic(server, topic)
    return rows


def _plan(config: LoadConfig) -> tuple[float, int]:
    started = time.perf_counter()
    prepared = prepare_load(config, clock=lambda: time.time_ns() // 1_000_000)
    return time.perf_counter() - started, 0 if prepared is None else len(prepared.plan.ranges)


def _write_commits(root: Path, topic: str, commits: int) -> None:
    """A chain of manifests, as loads of no records would have left it."""
    layout = topic_layout(str(root), topic)
    Path(layout.commits).mkdir(parents=True)
    previous = None
    for sequence in range(1, commits + 1):
        file = DataFile(
            path=f"hourly/2026/11/25/10/0-0-r{sequence}-0-0-0.parquet",
            partition=0,
            hour_ms=1_795_600_800_000,
            records=0,
            bytes=0,
            first_offset=0,
            last_offset=0,
            crc32c=0,
        )
        manifest = Manifest(
            sequence=sequence,
            run_id=f"r{sequence}",
            created_ms=1_795_600_800_000 + sequence,
            topic=topic,
            topic_id=None,
            format="parquet",
            window_ms=600_000,
            offsets=dict.fromkeys(range(PARTITIONS), 0) if sequence == commits else {},
            ranges=(),
            files=(file,),
            previous_sha256=previous,
        )
        encoded = manifest.encode()
        Path(layout.manifest(sequence)).write_bytes(encoded)
        previous = sha256_of(encoded)
