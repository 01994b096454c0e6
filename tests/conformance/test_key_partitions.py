"""The partition of a key is that of the Java client, whose own code is asked."""

import base64
import subprocess
from pathlib import Path
from random import Random

from pipeline.client.producer.partitioner import murmur2, partition_for_key
from tests.support import kafka
from tests.support.jars import java
from tests.support.kafka import SHORT_LIVED, kafka_jars

PROGRAM = Path(kafka.__file__).with_name("KeyPartitions.java")
SEED = 20261126


def answers_of_java(questions: list[tuple[bytes, int]]) -> list[tuple[int, int]]:
    command = [java(), *SHORT_LIVED, "-cp", f"{kafka_jars()}/*", str(PROGRAM)]
    asked = "".join(f"{count} {base64.b64encode(key).decode()}\n" for key, count in questions)
    printed = subprocess.run(command, input=asked, capture_output=True, text=True, check=True, timeout=300).stdout
    return [(int(line.split()[0]), int(line.split()[1])) for line in printed.splitlines()]


def test_keys_of_all_lengths_go_where_the_java_client_sends_them() -> None:
    random = Random(SEED)
    keys = [random.randbytes(length) for length in range(1001)]
    keys += [random.randbytes(random.randint(0, 1000)) for _ in range(2000)]
    keys += [bytes([byte]) * length for byte in (0, 0x7F, 0x80, 0xFF) for length in range(12)]
    questions = [(key, random.choice((1, 2, 3, 7, 12, 100, 1000, 2**31 - 1))) for key in keys]
    answers = answers_of_java(questions)
    assert len(answers) == len(questions) == 3049
    for (key, count), (hashed, partition) in zip(questions, answers, strict=True):
        assert murmur2(key) == hashed & 0xFFFFFFFF
        assert murmur2(memoryview(key)) == hashed & 0xFFFFFFFF  # type: ignore[arg-type]
        assert partition_for_key(key, count) == partition
