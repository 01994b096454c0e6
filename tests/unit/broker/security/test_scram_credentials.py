"""SCRAM credentials by requests, in ZooKeeper, and beside quotas of the same user."""

import pytest
import trio

from pipeline.coordination.scram_znodes import ScramCredential, ScramHash, salted_password, user_path
from pipeline.coordination.znodes import decode_config, encode_config
from pipeline.protocol.errors import ErrorCode
from pipeline.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from pipeline.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from tests.support.broker_in_process import Broker, Start

SALT = b"salt of 15 byte"
ITERATIONS = 4096
SHA_256, SHA_512 = 1, 2


def setting(name: str = "alice", *, mechanism: int = SHA_256, **fields: object) -> ScramCredentialUpsertion:
    kind = ScramHash.SHA_512 if mechanism == SHA_512 else ScramHash.SHA_256
    given = {"salted_password": salted_password(kind, "pencil", SALT, ITERATIONS), "salt": SALT, "iterations": 4096}
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, **{**given, **fields})  # type: ignore[arg-type]


async def alter(broker: Broker, *changes: ScramCredentialUpsertion | ScramCredentialDeletion) -> dict[str, int]:
    deletions = [change for change in changes if isinstance(change, ScramCredentialDeletion)]
    upsertions = [change for change in changes if isinstance(change, ScramCredentialUpsertion)]
    answer = await broker.ask(AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions))
    return {result.user: result.error_code for result in answer.results}


async def users(broker: Broker, *names: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    asked = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names] or None)
    answer = await broker.ask(asked)
    return {
        result.user: (result.error_code, [(info.mechanism, info.iterations) for info in result.credential_infos])
        for result in answer.results
    }


async def test_credentials_are_set_described_and_removed(start: Start) -> None:
    async with start() as broker:
        assert await users(broker) == {}
        assert await alter(broker, setting(), setting(mechanism=SHA_512, iterations=8192), setting("bob")) == {
            "alice": 0,
            "bob": 0,
        }
        assert await users(broker) == {"alice": (0, [(SHA_256, 4096), (SHA_512, 8192)]), "bob": (0, [(SHA_256, 4096)])}
        assert await alter(broker, ScramCredentialDeletion(name="alice", mechanism=SHA_256)) == {"alice": 0}
        assert await users(broker, "alice", "carol") == {
            "alice": (0, [(SHA_512, 8192)]),
            "carol": (ErrorCode.RESOURCE_NOT_FOUND, []),
        }


async def test_the_znode_is_the_one_of_kafka_and_keeps_the_quotas_of_the_user(start: Start) -> None:
    async with start() as broker:
        path = user_path("alice")
        await broker.zookeeper.create(path, encode_config({"producer_byte_rate": "1000"}))
        assert await alter(broker, setting()) == {"alice": 0}
        found = decode_config(path, (await broker.zookeeper.get(path)).data)
        assert found["producer_byte_rate"] == "1000"
        assert ScramCredential.decode(found["SCRAM-SHA-256"]).iterations == ITERATIONS
        assert set(found) == {"producer_byte_rate", "SCRAM-SHA-256"}


async def test_other_brokers_learn_of_a_credential(start: Start) -> None:
    async with start() as first, start(2) as second:
        await alter(first, setting())
        with trio.fail_after(60):
            while not await users(second):
                await trio.sleep(0.01)


def test_a_credential_is_written_as_kafka_writes_it() -> None:
    made = ScramCredential.of_salted_password(
        ScramHash.SHA_256, salted_password(ScramHash.SHA_256, "pencil", SALT, ITERATIONS), SALT, ITERATIONS
    )
    assert ScramCredential.decode(made.encode()) == made
    assert "pencil" not in repr(made)
    assert made.salt.hex() not in repr(made)
    assert made.encode().startswith("salt=c2FsdCBvZiAxNSBieXRl,stored_key=")


@pytest.mark.parametrize("text", ["", "salt=x", "salt=c2E=,stored_key=c2E=,server_key=c2E=,iterations=x", "=,=,"])
def test_other_text_is_no_credential(text: str) -> None:
    with pytest.raises(ValueError, match="no SCRAM credential"):
        ScramCredential.decode(text)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([setting(iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([setting(iterations=16385)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([setting(iterations=-1)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([setting("")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([setting("a" * 5000)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([setting(salt=b"")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([setting(salt=b"x" * 5000)], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([setting(salted_password=b"short")], ErrorCode.UNACCEPTABLE_CREDENTIAL),
        ([setting(mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        ([setting(), setting()], ErrorCode.DUPLICATE_RESOURCE),
        ([setting(), ScramCredentialDeletion(name="alice", mechanism=SHA_256)], ErrorCode.DUPLICATE_RESOURCE),
        ([ScramCredentialDeletion(name="alice", mechanism=SHA_256)], ErrorCode.RESOURCE_NOT_FOUND),
        (
            [setting(), ScramCredentialDeletion(name="alice", mechanism=SHA_512)],
            ErrorCode.RESOURCE_NOT_FOUND,
        ),
    ],
)
async def test_changes_that_cannot_be_made_change_nothing_and_no_other_user(
    start: Start, changes: list[ScramCredentialUpsertion | ScramCredentialDeletion], code: ErrorCode
) -> None:
    async with start() as broker:
        results = await alter(broker, *changes, setting("bob"))
        assert results == {changes[0].name: code, "bob": 0}
        assert await users(broker) == {"bob": (0, [(SHA_256, 4096)])}


async def test_the_same_user_twice_is_refused(start: Start) -> None:
    async with start() as broker:
        await alter(broker, setting())
        assert (await users(broker, "alice", "alice"))["alice"][0] == ErrorCode.DUPLICATE_RESOURCE
