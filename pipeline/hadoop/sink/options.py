"""Options and columns of the sink, checked before a task starts. Names are those of Spark's Kafka sink."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from pipeline.client.cluster.config import ClientConfig
from pipeline.errors import ConfigurationError
from pipeline.hadoop.ranges.spark_security import (
    LOGIN_KEYS,
    SECURITY_KEYS,
    is_security_option,
    registry_login_of,
    security_of,
)
from pipeline.hadoop.sink.avro_values import AvroOptions
from pipeline.net.security.client_security import ClientSecurity
from pipeline.records.compression import Codec
from pipeline.settings import parse_addresses

_TEXT: Final = (StringType, BinaryType)
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "key": (_TEXT, "string or binary"),
    "value": (_TEXT, "string or binary"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "headers": ((ArrayType,), "array<struct<key: string, value: binary>>"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options. `topic` is None if each row names its topic. `checkpoint` is None for `df.write`."""

    bootstrap: str
    topic: str | None
    codec: Codec
    batch_bytes: int
    checkpoint: str | None
    avro: AvroOptions | None
    security: ClientSecurity

    KEYS: ClassVar = (
        "kafka.bootstrap.servers",
        "topic",
        "kafka.compression.type",
        "kafka.batch.size",
        *SECURITY_KEYS,
        "checkpointLocation",
        "valueFormat",
        "schema.registry.url",
        *LOGIN_KEYS,
        "valueSubject",
        "autoRegisterSchemas",
    )

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_stream: bool) -> "SinkOptions":
        """Parse options, whose names Spark passes in lower case. Raises ConfigurationError that names the option."""
        given = {key.lower(): value for key, value in options.items()}
        known = {key.lower() for key in cls.KEYS} | {"path"}
        unknown = {key for key in given if key not in known and not is_security_option(key)}
        if unknown:
            raise ConfigurationError(sorted(unknown)[0], f"is not an option; these are: {', '.join(cls.KEYS)}")
        bootstrap = given.get("kafka.bootstrap.servers", "")
        try:
            parse_addresses(bootstrap)
        except ValueError as error:
            raise ConfigurationError("kafka.bootstrap.servers", str(error)) from error
        checkpoint = given.get("checkpointlocation")
        if is_stream and not checkpoint:
            raise ConfigurationError("checkpointLocation", "is missing: the sink recognizes a restarted query by it")
        codec = given.get("kafka.compression.type", "none").upper()
        if codec not in Codec.__members__:
            names = ", ".join(name.lower() for name in Codec.__members__)
            raise ConfigurationError("kafka.compression.type", f"'{codec.lower()}' is none of {names}")
        size = given.get("kafka.batch.size", str(512 * 1024))
        if not size.isdigit() or not 1 <= int(size) < 1 << 30:
            raise ConfigurationError("kafka.batch.size", f"'{size}' is no number of bytes from 1 to 1 GiB")
        return cls(
            bootstrap=bootstrap,
            topic=given.get("topic") or None,
            codec=Codec[codec],
            batch_bytes=int(size),
            checkpoint=checkpoint if is_stream else None,
            avro=_avro(given),
            security=security_of(given),
        )

    @property
    def client(self) -> ClientConfig:
        """Return the settings of a client of the cluster."""
        return ClientConfig(
            bootstrap=parse_addresses(self.bootstrap), client_id="pipeline-spark-sink", security=self.security
        )


def _avro(given: Mapping[str, str]) -> AvroOptions | None:
    registers = given.get("autoregisterschemas", "false").lower()
    if registers not in {"true", "false"}:
        raise ConfigurationError("autoRegisterSchemas", f"'{registers}' is neither true nor false")
    value_format = given.get("valueformat", "binary").lower()
    if value_format not in {"binary", "avro"}:
        raise ConfigurationError("valueFormat", f"'{value_format}' is none of binary, avro")
    if value_format == "binary":
        return None
    urls = tuple(url for url in (part.strip() for part in given.get("schema.registry.url", "").split(",")) if url)
    if not urls:
        raise ConfigurationError("schema.registry.url", "is missing: valueFormat=avro needs it")
    subject, login = given.get("valuesubject") or None, registry_login_of(given)
    return AvroOptions(registry=urls, subject=subject, registers=registers == "true", login=login)


def check_written_columns(schema: StructType, topic: str | None, *, is_avro: bool) -> None:
    """Raise ConfigurationError unless rows have a value and a topic, and columns of the right types.

    With `is_avro`, the schema of values decides about the type of `value`.
    """
    types = {field.name: field.dataType for field in schema}
    if "value" not in types:
        raise ConfigurationError("value", f"is missing among the columns {', '.join(types)}")
    if topic is None and "topic" not in types:
        raise ConfigurationError("topic", "is missing: set the option, or select a column topic")
    for name, (kinds, wanted) in _TYPES.items():
        found = types.get(name)
        if found is None or (is_avro and name == "value"):
            continue
        is_wrong_list = isinstance(found, ArrayType) and found.elementType.simpleString() != _HEADER.simpleString()
        if not isinstance(found, kinds) or is_wrong_list:
            raise ConfigurationError(name, f"is a column of type {found.simpleString()}, must be {wanted}")
