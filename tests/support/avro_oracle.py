"""Java's Avro, asked about schemas in a JVM that answers line by line, and fastavro in the same words."""

import base64
import io
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro

from tests.support.jars import java, pyspark_jars
from tests.support.kafka import SHORT_LIVED

PROGRAM = Path(__file__).with_name("AvroOracle.java")
NAMED = ("record", "error", "enum", "fixed")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader made of a datum: its value as JSON, or the error that it raised."""

    value: Any
    error: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Reasons of the checker of Java's Avro, none if it calls a pair compatible, and the readings of Java's reader."""

    reasons: Sequence[str]
    readings: Sequence[Reading]


@dataclass(frozen=True, slots=True)
class Parsed:
    """A schema as Java writes it, or why Java refuses it; and whether it equals the first one that was sent."""

    text: str | None
    error: str | None
    equal: bool


class AvroOracle:
    """The running program."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def judge(self, reader: str, writer: str, data: Sequence[bytes]) -> Verdict:
        texts = [base64.b64encode(datum).decode() for datum in data]
        answer = self._ask({"reader": reader, "writer": writer, "data": texts})
        readings = [Reading(*pair) for pair in zip(answer["values"], answer["errors"], strict=True)]
        return Verdict(answer["reasons"], readings)

    def parse(self, schemas: Sequence[str], references: Sequence[str] = ()) -> list[Parsed]:
        answer = self._ask({"schemas": schemas, "references": references})
        return [Parsed(*three) for three in zip(answer["texts"], answer["errors"], answer["equal"], strict=True)]

    def _ask(self, request: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def running_avro_oracle() -> Iterator[AvroOracle]:
    """Start the program. A compiler that lies among pyspark's jars takes it, so that no JDK is needed."""
    command = [java(), *SHORT_LIVED, "-cp", f"{pyspark_jars()}/*", "org.codehaus.janino.SimpleCompiler"]
    with subprocess.Popen(
        [*command, str(PROGRAM), "AvroOracle"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    ) as process:
        try:
            yield AvroOracle(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=30)


def read_with_fastavro(reader: Any, writer: Any, data: Sequence[bytes]) -> list[Reading]:
    """Read data with fastavro. Its values of logical types are left out: they are stored as their base types."""
    writer_model, reader_model = (fastavro.parse_schema(without_logical_types(one)) for one in (writer, reader))
    readings = []
    for datum in data:
        source = io.BytesIO(datum)
        try:
            value = fastavro.schemaless_reader(source, writer_model, reader_model)
        except Exception as error:  # each way to fail is one
            readings.append(Reading(None, repr(error)))
        else:
            readings.append(Reading(as_json(value), "bytes are left" if source.read() else None))
    return readings


def encode_with_fastavro(writer: Any, data: Sequence[Any]) -> list[bytes]:
    model = fastavro.parse_schema(without_logical_types(writer))
    encoded = []
    for datum in data:
        target = io.BytesIO()
        fastavro.schemaless_writer(target, model, datum)
        encoded.append(target.getvalue())
    return encoded


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_logical_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {name: value for name, value in schema.items() if name not in ("logicalType", "precision", "scale")}
    for part in ("items", "values"):
        if part in plain:
            plain[part] = without_logical_types(plain[part])
    if "fields" in plain:
        plain["fields"] = [{**field, "type": without_logical_types(field["type"])} for field in plain["fields"]]
    return plain


def as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return value
