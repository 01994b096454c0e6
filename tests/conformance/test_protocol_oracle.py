"""Every message in every version, byte for byte as kio has it (which is generated from Apache Kafka's own definitions).

kio follows Kafka 4, which dropped Produce 0 to 2: those are compared with kafka-python's old definitions of them.
"""

import importlib
import io
import warnings
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_reader, entity_writer

from pipeline.protocol.api import ApiKey
from pipeline.protocol.codec import decode, encode
from pipeline.protocol.connection import ClientConnection, Request, ServerConnection
from pipeline.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from pipeline.protocol.schema import ZERO_UUID, FieldDeclaration, Kind, Message, declarations
from tests.support.protocol_messages import OWN_TAG, case_id, cases, messages_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DROPPED_BY_KIO = {(cls, version) for cls in (ProduceRequest, ProduceResponse) for version in (0, 1, 2)}

RENAMED = {"AlteredEntryData": "EntryData"}
"""Structs of request and response that Kafka calls alike though they differ."""

bounded = settings(max_examples=10, suppress_health_check=list(HealthCheck))


def body(message: Message, version: int) -> bytes:
    pieces = encode(message, version)
    assert all(isinstance(piece, bytes) for piece in pieces)
    return b"".join(pieces)  # type: ignore[arg-type]


def fields_in(cls: type, version: int) -> list[FieldDeclaration]:
    return [field for field in declarations(cls) if field.exists_in(version) and (field.wire.tag or 0) < OWN_TAG]


def kio_class(cls: type[Message], version: int) -> type[Any]:
    name = ApiKey(cls.API_KEY).name.lower()
    kind = "request" if cls.__name__.endswith("Request") else "response"
    found: type[Any] = getattr(importlib.import_module(f"kio.schema.{name}.v{version}.{kind}"), cls.__name__)
    return found


def to_kio(message: Any, version: int, module: str) -> Any:
    """The same message as kio's types: fields are in the same order, some of richer types."""
    name = type(message).__name__
    cls: Any = getattr(importlib.import_module(module), RENAMED.get(name, name))
    ours, theirs = fields_in(type(message), version), fields(cls)
    assert [field.name.replace("_", "") for field in ours] == [
        (field.name + _unit(field.name, declared.name)).replace("_", "")
        for field, declared in zip(theirs, ours, strict=True)
    ]
    values = {}
    for field, declared in zip(theirs, ours, strict=True):
        kafka_type = field.metadata.get("kafka_type")
        values[field.name] = _value(getattr(message, declared.name), declared, kafka_type, version, module)
    return cls(**values)


def _unit(theirs: str, ours: str) -> str:
    return "_ms" if ours.endswith("_ms") and not theirs.endswith("_ms") else ""


def _value(value: Any, declared: FieldDeclaration, kafka_type: str | None, version: int, module: str) -> Any:
    if value is None:
        return None
    if declared.is_array:
        return tuple(_value(item, declared.element(), kafka_type, version, module) for item in value)
    if declared.struct is not None:
        return to_kio(value, version, module)
    if declared.kind is Kind.UUID:
        return None if value == ZERO_UUID else value
    match kafka_type:
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=value)
        case "error_code":
            return KioErrorCode(value)
        case "datetime_i64":
            return None if value == -1 else EPOCH + timedelta(milliseconds=value)
        case _:
            assert kafka_type == declared.kind.value[0], declared.name
            return value


@pytest.mark.parametrize(("cls", "version"), [case for case in cases() if case not in DROPPED_BY_KIO], ids=case_id)
def test_equal_to_kio_in_both_directions(cls: type[Message], version: int) -> None:
    theirs = kio_class(cls, version)
    write, read = entity_writer(theirs), entity_reader(theirs)

    @bounded
    @given(messages_of(cls, version, own_fields=False))
    def check(message: Message) -> None:
        counterpart = to_kio(message, version, theirs.__module__)
        written = io.BytesIO()
        write(written, counterpart)
        ours = body(message, version)
        assert ours == written.getvalue()
        assert decode(cls, version, ours) == message
        parsed, size = read(ours, 0)
        assert (parsed, size) == (counterpart, len(ours))

    check()


def _old_definitions() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module("kafka.protocol.old.produce")


@pytest.mark.parametrize("version", [0, 1, 2])
@bounded
@given(records=st.binary(min_size=1, max_size=40), name=st.text(max_size=8), index=st.integers(0, 1000))
def test_produce_requests_that_kafka_4_dropped(version: int, records: bytes, name: str, index: int) -> None:
    partitions = (PartitionProduceData(index=index, records=records),)
    message = ProduceRequest(acks=1, timeout_ms=7, topic_data=(TopicProduceData(name=name, partition_data=partitions),))
    theirs = (
        _old_definitions()
        .ProduceRequest[version](required_acks=1, timeout=7, topics=[(name, [(index, records)])])
        .encode()
    )
    assert body(message, version) == theirs
    assert decode(ProduceRequest, version, theirs) == message


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_responses_that_kafka_4_dropped(version: int) -> None:
    answer = PartitionProduceResponse(index=1, error_code=35, base_offset=-1)
    message = ProduceResponse(responses=(TopicProduceResponse(name="t", partition_responses=(answer,)),))
    partition = (1, 35, -1) if version < 2 else (1, 35, -1, -1)
    throttle = () if version == 0 else (0,)
    theirs = _old_definitions().ProduceResponse[version]([("t", [partition])], *throttle).encode()
    assert body(message, version) == theirs
    assert decode(ProduceResponse, version, theirs) == message


@pytest.mark.parametrize("key", list(ApiKey))
def test_headers_are_those_of_kio(key: ApiKey) -> None:
    for version in range(key.min_version, key.max_version + 1):
        if (key.request, version) in DROPPED_BY_KIO:
            continue
        client, server = ClientConnection("cliënt"), ServerConnection(1 << 20)
        _, pieces = client.encode_request(key.request(), version)
        header = kio_class(key.request, version).__header_schema__
        values = {"request_api_key": key, "request_api_version": version, "correlation_id": 0, "client_id": "cliënt"}
        expected = _framed(header(**values), body(key.request(), version))
        assert pieces == [expected]
        server.get_buffer()[: len(expected)] = expected
        server.bytes_received(len(expected))
        request = server.next_request()
        assert isinstance(request, Request)
        header = kio_class(key.response, version).__header_schema__
        response = server.encode_response(request, key.response())
        assert response == [_framed(header(correlation_id=0), body(key.response(), version))]


def _framed(header: Any, encoded: bytes) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(header))(buffer, header)
    return (len(buffer.getvalue()) + len(encoded)).to_bytes(4, "big") + buffer.getvalue() + encoded
