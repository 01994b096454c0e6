from collections.abc import Callable
from dataclasses import fields

import pytest

from pipeline.client.cluster.config import Acks, ClientConfig, ConsumerConfig, OffsetReset, ProducerConfig
from pipeline.errors import ConfigurationError
from pipeline.model import HostPort
from pipeline.records.compression import Codec

Build = Callable[..., object]


@pytest.mark.parametrize("build", [ClientConfig, ProducerConfig, ConsumerConfig])
def test_numbers_of_the_client_settings_have_bounds(build: Build) -> None:
    defaults = build()
    for field in fields(defaults):  # type: ignore[arg-type]
        value = getattr(defaults, field.name)
        if isinstance(value, bool) or type(value) is not int:
            continue
        for bad in (-1, 2**63, "1"):
            with pytest.raises(ConfigurationError, match=r"must be from") as caught:
                build(**{field.name: bad})
            assert caught.value.key.replace(".", "_") == field.name


def test_window_has_bounds_when_given() -> None:
    assert ProducerConfig(window_ms=1).window_ms == 1
    with pytest.raises(ConfigurationError, match=r"window\.ms"):
        ProducerConfig(window_ms=0)


def test_idempotence_needs_all_acks() -> None:
    with pytest.raises(ConfigurationError, match=r"enable\.idempotence.*acks=all"):
        ProducerConfig(acks=Acks.LEADER)
    assert ProducerConfig(acks=Acks.LEADER, idempotence=False).acks is Acks.LEADER


@pytest.mark.parametrize(
    ("build", "bad", "key"),
    [
        (ConsumerConfig, {"auto_offset_reset": "first"}, "auto.offset.reset"),
        (ConsumerConfig, {"auto_offset_reset": None}, "auto.offset.reset"),
        (ProducerConfig, {"compression": "zst"}, "compression"),
        (ProducerConfig, {"compression": 5}, "compression"),
        (ProducerConfig, {"retries": 0}, "enable.idempotence"),
        (ProducerConfig, {"compression_level": 1}, "compression.none.level"),
        (ProducerConfig, {"compression": Codec.SNAPPY, "compression_level": 1}, "compression.snappy.level"),
        (ProducerConfig, {"compression": Codec.GZIP, "compression_level": 0}, "compression.gzip.level"),
        (ProducerConfig, {"compression": Codec.GZIP, "compression_level": 10}, "compression.gzip.level"),
        (ProducerConfig, {"compression": Codec.LZ4, "compression_level": 0}, "compression.lz4.level"),
        (ProducerConfig, {"compression": Codec.LZ4, "compression_level": 18}, "compression.lz4.level"),
        (ProducerConfig, {"compression": Codec.ZSTD, "compression_level": 23}, "compression.level"),
        (ProducerConfig, {"compression": Codec.ZSTD, "compression_level": True}, "compression.level"),
        (ProducerConfig, {"acks": 2}, "acks"),
        (ProducerConfig, {"acks": "most", "idempotence": False}, "acks"),
        (ProducerConfig, {"idempotence": "false"}, "idempotence"),
        (ProducerConfig, {"record_headers": (("a", "text"),)}, "record.headers"),
        (ProducerConfig, {"record_headers": None}, "record.headers"),
        (ClientConfig, {"client_id": None}, "client.id"),
        (ClientConfig, {"client_id": "x" * 32768}, "client.id"),
        (ClientConfig, {"client_id": "\ud800"}, "client.id"),
        (ClientConfig, {"bootstrap": "127.0.0.1:9092"}, "bootstrap"),
        (ClientConfig, {"bootstrap": ("127.0.0.1:9092",)}, "bootstrap"),
        (ClientConfig, {"bootstrap": None}, "bootstrap"),
        (ClientConfig, {"allow_auto_create_topics": "no"}, "allow.auto.create.topics"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(build: Build, bad: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        build(**bad)
    assert caught.value.key == key


def test_the_value_of_a_member_is_taken_for_the_member() -> None:
    assert ConsumerConfig(auto_offset_reset="earliest").auto_offset_reset is OffsetReset.EARLIEST  # type: ignore[arg-type]
    config = ProducerConfig(acks=-1, compression=4)  # type: ignore[arg-type]
    assert (config.acks, config.compression) == (Acks.ALL, Codec.ZSTD)
    assert config.acks is Acks.ALL
    address = HostPort("localhost", 9092)
    assert list(ClientConfig(bootstrap=[address]).bootstrap) == [address]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Codec.GZIP, [-1, 1, 9]), (Codec.LZ4, [1, 9, 17]), (Codec.ZSTD, [-131_072, -1, 0, 22])],
)
def test_codecs_have_the_levels_of_kafka(codec: Codec, levels: list[int]) -> None:
    for level in levels:
        assert ProducerConfig(compression=codec, compression_level=level).compression_level == level


def test_choices_may_be_given_by_name_as_in_other_clients() -> None:
    config = ProducerConfig(acks="all", compression="zstd")  # type: ignore[arg-type]
    assert (config.acks, config.compression) == (Acks.ALL, Codec.ZSTD)
    consumer = ConsumerConfig(auto_offset_reset="earliest", isolation_level="read_committed")  # type: ignore[arg-type]
    assert consumer.auto_offset_reset is OffsetReset.EARLIEST
    assert consumer.isolation_level.name == "READ_COMMITTED"
    with pytest.raises(ConfigurationError, match=r"is 'zst', must be one of 'none', 'gzip', 'snappy', 'lz4', 'zstd'"):
        ProducerConfig(compression="zst")  # type: ignore[arg-type]
