"""Range and round robin assignments, subscriptions and assignments, as the Java client makes and writes them."""

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline.client.consumer.consumer_protocol import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from pipeline.client.group.assignors.members import JoinedMember
from pipeline.client.group.assignors.strategies import STRATEGIES
from pipeline.model import TopicPartition
from tests.support.kafka import java_with_compiler

CASES = 150
PREFIXES = ["m", "ä", "\U0001d11e", "\uffee"]
"""The last two are in another order as units of UTF-16, by which Java compares, than as characters."""
Ask = Callable[[Any], Any]


@pytest.fixture(scope="module")
def java_client() -> Iterator[Ask]:
    """Asks the program about one line of JSON."""
    program = Path(__file__).parents[1] / "support" / "GroupOracle.java"
    with subprocess.Popen(
        [*java_with_compiler(), str(program), "GroupOracle"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def ask(question: Any) -> Any:
            asked.write(json.dumps(question) + "\n")
            asked.flush()
            return json.loads(answers.readline())

        try:
            yield ask
        finally:
            asked.close()
            process.wait(timeout=30)


@pytest.mark.parametrize("name", ["range", "roundrobin"])
def test_assignments_equal_those_of_java(java_client: Ask, name: str) -> None:
    for seed in range(CASES):
        random = Random(seed)
        topics = ["a", "b", "c", "dé"]
        counts = {topic: random.randint(0, 9) for topic in random.sample(topics, random.randint(0, 4))}
        members = [
            JoinedMember(
                id=f"{random.choice(PREFIXES)}-{number}",
                instance_id=f"i-{random.randint(0, 9)}-{number}" if random.random() < 0.4 else None,
                subscription=MemberSubscription(topics=tuple(random.sample(topics, random.randint(0, 4)))),
            )
            for number in range(random.randint(1, 7))
        ]
        question = {
            "assignor": name,
            "partitions": counts,
            "members": [
                {"id": member.id, "instance": member.instance_id, "topics": list(member.subscription.topics)}
                for member in members
            ],
        }
        theirs = {
            member: sorted(TopicPartition(*partition) for partition in partitions)
            for member, partitions in java_client(question).items()
        }
        ours = {member: sorted(owned) for member, owned in STRATEGIES[name].assign(counts, members).items()}
        assert ours == theirs, question


@pytest.mark.parametrize("version", range(4))
def test_subscriptions_and_assignments_are_those_of_java_byte_for_byte(java_client: Ask, version: int) -> None:
    for seed in range(CASES):
        random = Random(seed)
        owned = [TopicPartition(random.choice(["a", "b", "ünter"]), number) for number in range(random.randint(0, 5))]
        subscription = MemberSubscription(
            topics=tuple(sorted(random.sample(["a", "b", "c", "ünter"], random.randint(0, 4)))),
            user_data=random.choice([None, b"", b"\0\1\2"]),
            owned=tuple(sorted(owned)) if version else (),
            generation=random.choice([-1, 0, 7]) if version > 1 else -1,
            rack=random.choice([None, "r1"]) if version > 2 else None,
        )
        user_data = subscription.user_data
        question = {
            "version": version,
            "topics": list(subscription.topics),
            "owned": sorted(owned),
            "user_data": None if user_data is None else base64.b64encode(user_data).decode(),
            "generation": subscription.generation,
            "rack": subscription.rack,
        }
        answer = java_client(question)
        written = base64.b64decode(answer["subscription"])
        assert encode_subscription(subscription, version) == written
        assert decode_subscription(written) == subscription
        assignment = base64.b64decode(answer["assignment"])
        assert sorted(decode_assignment(assignment)) == sorted(owned)
        assert sorted(decode_assignment(encode_assignment(owned, user_data, version))) == sorted(owned)
        assert len(encode_assignment(owned, user_data, version)) == len(assignment)
