"""`produce` and `consume` as users of kcat know them, with kcat on the other end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.clients import run_kcat

DEADLINE_S = 240
FORMAT = r"%p %o %k=%s %S %K %h %T\n"
COMMAND = (sys.executable, "-m", "pipeline")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(settings={"num.partitions": 1, "auto.create.topics.enable": False}) as running:
        yield running


class Shell:
    """Commands at a cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def run(self, *arguments: str | bytes, given: bytes = b"", code: int = 0) -> tuple[bytes, bytes]:
        done = subprocess.run(
            [*COMMAND, *arguments, "-b", self.bootstrap],
            input=given,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == code, done
        return done.stdout, done.stderr

    def topic(self, name: str, partitions: int = 1) -> str:
        self.run("topic", "create", name, "--partitions", str(partitions))
        return name

    def kcat(self, *arguments: str, given: bytes = b"") -> bytes:
        return run_kcat("-b", self.bootstrap, *arguments, given=given).stdout


@pytest.fixture(scope="module")
def shell(cluster: LocalCluster) -> Shell:
    return Shell(cluster.bootstrap)


def test_what_is_produced_is_what_kcat_reads_and_the_other_way_round(shell: Shell) -> None:
    ours, theirs = shell.topic("ours"), shell.topic("theirs")
    lines = b"a:1|b:|c:3|d:x:y"
    options = ("-K", ":", "-D", "|", "-H", "h=1", "-H", "g=", "-Z", "-z")
    shell.run("produce", ours, *options, "zstd", given=lines)
    shell.kcat("-P", "-t", theirs, *options, "lz4", given=lines)
    for topic in (ours, theirs):
        read = shell.kcat("-C", "-t", topic, "-e", "-q", "-f", FORMAT, "-Z")
        assert read.split(b"\n")[1].startswith(b"0 1 b=NULL -1 1 h=1,g=")
        assert shell.run("consume", topic, "--format", FORMAT, "-Z")[0] == read
        plain = shell.kcat("-C", "-t", topic, "-e", "-q", "-K", ";", "-D", "|")
        assert shell.run("consume", topic, "-K", ";", "-D", "|")[0] == plain == b"a;1|b;|c;3|d;x:y|"


def test_json_lines_are_read_back(shell: Shell) -> None:
    first, second = shell.topic("first"), shell.topic("second")
    shell.run("produce", first, "-K", ":", "-H", "a=1", "-H", "a=2", "-H", "b", "-Z", given=b"k:\xff\n:v\nk:\n")
    told, _ = shell.run("consume", first, "--json")
    shell.run("produce", second, "--json-records", "--timestamps", given=told)
    again, _ = shell.run("consume", second, "--json")
    assert [json.loads(line) | {"topic": ""} for line in again.splitlines()] == [
        json.loads(line) | {"topic": ""} for line in told.splitlines()
    ]


@pytest.mark.long
def test_times_and_last_records_select(shell: Shell) -> None:
    topic = shell.topic("timed", partitions=2)
    for partition, times in (("0", (1000, 3000, 5000)), ("1", (2000, 4000, 6000))):
        lines = "".join(f"{time}\t{time}\n" for time in times)
        shell.run("produce", topic, "--timestamps", "-p", partition, given=lines.encode())

    def read(*options: str) -> list[int]:
        return [int(line) for line in shell.run("consume", topic, *options)[0].split()]

    assert sorted(read("--from", "3000")) == [3000, 4000, 5000, 6000]
    assert sorted(read("--from", "1970-01-01T00:00:02", "--until", "1970-01-01T00:00:05")) == [2000, 3000, 4000]
    assert sorted(read("--until", "1")) == [1000, 2000]
    assert read("--from", "2026-11-01") == []
    assert read("--last", "3") == [4000, 5000, 6000]
    assert sorted(read("--last", "1", "--per-partition")) == [5000, 6000]
    assert read("-p", "1", "-o", "1", "-n", "1") == [4000]


@pytest.mark.long
def test_a_group_goes_on_after_what_was_printed(shell: Shell) -> None:
    topic = shell.topic("shared", partitions=2)
    shell.run("produce", topic, "-p", "0", given=b"".join(b"%d\n" % number for number in range(50)))
    first, _ = shell.run("consume", topic, "--group", "readers", "-n", "20")
    second, _ = shell.run("consume", "^shar.*", "--group", "readers")
    assert [int(line) for line in (first + second).split()] == list(range(50))
    assert shell.run("consume", topic, "--group", "readers") == (b"", b"")
    committed = json.loads(shell.run("group", "describe", "readers", "--json")[0])
    assert "50" in json.dumps(committed)
    assert b"regular expression needs --group" in shell.run("consume", "^shar.*", code=2)[1]
    assert b"reads from its own offsets" in shell.run("consume", topic, "--group", "g", "--last", "1", code=2)[1]


@pytest.mark.long
def test_a_failure_tells_the_line_and_what_was_published(shell: Shell) -> None:
    topic = shell.topic("strict")
    _, told = shell.run("produce", topic, given=b"a\nb\n" + b"x" * 2_000_000 + b"\nc\n", code=1)
    assert told.startswith(b"pipeline: line 3 is longer than 1048576 bytes; -X max.request.size=BYTES raises")
    assert told.endswith(b"; 2 records published\n")
    shell.run("topic", "configure", topic, "--set", "max.message.bytes=2000")
    _, told = shell.run("produce", topic, "-X", "batch.size=1", given=b"d\n" + b"x" * 5_000 + b"\n", code=1)
    assert told.startswith(b"pipeline: line 2 was not acknowledged: MESSAGE_TOO_LARGE")
    assert told.endswith(b"; 1 record published\n")
    assert shell.run("consume", topic)[0] == b"a\nb\nd\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-X", "linger.m=1"], b"did you mean linger.ms?"),
        (["-X", "linger.ms=x"], b"must be a number"),
        (["-X", "linger.ms=-1"], b"linger.ms: is -1, must be from 0 to"),
        (["-X", "acks=2"], b"must be one of none, leader, all, 0, 1, -1"),
        (["-D", ""], b"--delimiter: must not be empty"),
    ],
)
def test_settings_are_checked(shell: Shell, arguments: list[str], reason: bytes) -> None:
    assert reason in shell.run("produce", "t", *arguments, code=2)[1]


@pytest.mark.long
def test_names_that_no_topic_has(cluster: LocalCluster, shell: Shell) -> None:
    assert b"no topic can have the name 'a b'" in shell.run("produce", "a b", code=2)[1]
    assert (
        b"`pipeline topic create -- -a` creates it"
        in shell.run("consume", "-b", cluster.bootstrap, "--", "-a", code=1)[1]
    )


@pytest.mark.long
def test_streams_that_are_closed_or_full_end_a_command_quietly(shell: Shell) -> None:
    topic = shell.topic("streams")
    shell.run("produce", topic, given=b"a\nb\n" * 40_000)

    def ended(command: str, redirection: str) -> tuple[int, bytes]:
        line = f"{' '.join(COMMAND)} {command} {topic} -b {shell.bootstrap} {redirection}"
        done = subprocess.run(
            ["sh", "-c", line], capture_output=True, timeout=DEADLINE_S, check=False, stdin=subprocess.DEVNULL
        )
        return done.returncode, done.stderr

    full = b"pipeline: cannot write to standard output: No space left on device\n"
    assert ended("consume", "> /dev/full") == (1, full)
    assert ended("produce", "> /dev/full") == (1, full + b"pipeline: published 0 records to streams all the same\n")
    for redirection in (">&-", "2>&-"):
        assert ended("consume", redirection) == (0, b"")
    for redirection in (">&-", "2>&-", "<&-"):
        assert ended("produce", redirection) == (0, b"")


@pytest.mark.long
def test_a_reader_that_leaves_ends_a_command_that_waits(shell: Shell) -> None:
    topic = shell.topic("left")
    shell.run("produce", topic, given=b"a\n")
    for options in ([], ["-f"], ["-f", "--group", "left"]):
        with subprocess.Popen(
            [*COMMAND, "consume", topic, *options, "-b", shell.bootstrap],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"a\n"
            process.stdout.close()
            assert process.wait(DEADLINE_S) in ({0, 141} if not options else {141})
            assert process.stderr is not None
            assert process.stderr.read() == b""


@pytest.mark.long
def test_an_interrupted_member_commits_what_it_printed_and_leaves_its_group(shell: Shell) -> None:
    topic = shell.topic("interrupted")
    shell.run("produce", topic, given=b"a\nb\n")
    options = ("-f", "--group", "interrupted", "-X", "auto.commit.interval.ms=600000", "-b", shell.bootstrap)
    with subprocess.Popen(
        [*COMMAND, "consume", topic, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"a\n"
        assert process.stdout.readline() == b"b\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        assert process.stderr.read() == b""
    told, _ = shell.run("group", "describe", "interrupted")
    assert told.startswith(b"interrupted: Empty, 0 member(s)")
    assert shell.run("consume", topic, "--group", "interrupted")[0] in {b"", b"a\nb\n"}  # as far as it had gone on


@pytest.mark.long
def test_many_records_come_out_as_they_went_in(shell: Shell, tmp_path: Path) -> None:
    topic = shell.topic("many", partitions=3)
    lines = [b"%d:%s" % (number % 1000, os.urandom(number % 90).hex().encode()) for number in range(400_000)]
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(lines))
    shell.run("produce", topic, str(path), "-K", ":")
    read, _ = shell.run("consume", topic, "-K", ":")
    assert sorted(read.splitlines()) == sorted(lines)
    kcat = shell.kcat("-C", "-t", topic, "-e", "-q", "-K", ":")
    assert sorted(kcat.splitlines()) == sorted(lines)
