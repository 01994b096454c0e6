"""A Fetch response (version 12) of 10 partitions: our decoder and encoder beside those of kio and kafka-python.

Each figure is the best of several rounds in which all take their turn, so the ratios hold on a busy machine too. All
three decode the same bytes, and encode what they decoded to the same bytes, ready for a socket: ours as a list of
pieces in which large records are references. kio (0.6) decodes in Rust and encodes in Python.
Target: at least 8 times kio for decode and encode together.
"""

import importlib
import io
import time
import warnings
from collections.abc import Callable
from typing import Any

from kio.schema.fetch.v12.response import FetchResponse as KioFetchResponse
from kio.serial import entity_reader, entity_writer

from bench.report import Options, Row, Show, Target
from pipeline.protocol.codec import decode, encode
from pipeline.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

VERSION = 12
PARTITIONS = 10
RECORDS_BYTES = (100, 1024, 16 * 1024)
ROUNDS = 15
CALLS = 200
TARGET = Target(bound=8, at_least=True)

Codec = tuple[Callable[[bytes], Any], Callable[[Any], list[Any]]]


def measure(options: Options, show: Show) -> list[Row]:
    """A row for each size and peer; how many calls decode and encode together take in a second."""
    rows = []
    for size in RECORDS_BYTES:
        name = f"decode and encode, {size} B of records"
        if options.selects(name):
            show(f"codec: {name}")
            rates = _rates(size, options.rounds or ROUNDS, options.scaled(CALLS))
            for peer, target in (("kio", TARGET), ("kafka-python", None)):
                unit, ours = "responses/s", rates["pipeline"]
                rows.append(Row(name=name, unit=unit, ours=ours, peer=peer, theirs=rates[peer], target=target))
    return rows


def _rates(records_bytes: int, rounds: int, calls: int) -> dict[str, float]:
    """Responses per second of every codec for one size of records, from its best times."""
    data = response_bytes(records_bytes)
    codecs = {"pipeline": _pipeline(), "kio": _kio(), "kafka-python": _kafka_python()}
    messages = {}
    for name, (decoder, encoder) in codecs.items():
        messages[name] = decoder(data)
        if b"".join(encoder(messages[name])) != data:
            raise AssertionError(f"{name} encodes other bytes")
    decode_s, encode_s = dict.fromkeys(codecs, float("inf")), dict.fromkeys(codecs, float("inf"))
    for _ in range(rounds):
        for name, (decoder, encoder) in codecs.items():
            decode_s[name] = min(decode_s[name], _seconds(decoder, data, calls))
            encode_s[name] = min(encode_s[name], _seconds(encoder, messages[name], calls))
    return {name: 1 / (decode_s[name] + encode_s[name]) for name in codecs}


def response_bytes(records_bytes: int) -> bytes:
    """The response that all codecs work on."""
    partitions = [
        PartitionData(
            partition_index=index,
            high_watermark=1_000_000 + index,
            last_stable_offset=1_000_000 + index,
            log_start_offset=500_000,
            records=bytes(records_bytes),
        )
        for index in range(PARTITIONS)
    ]
    message = FetchResponse(responses=(FetchableTopicResponse(topic="access_log", partitions=partitions),))
    return b"".join(encode(message, VERSION))  # type: ignore[arg-type]


def _seconds(function: Callable[[Any], Any], argument: Any, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(argument)
    return (time.perf_counter() - start) / calls


def _pipeline() -> Codec:
    return lambda data: decode(FetchResponse, VERSION, data), lambda message: encode(message, VERSION)


def _kio() -> Codec:
    read, write = entity_reader(KioFetchResponse), entity_writer(KioFetchResponse)

    def encoded(message: KioFetchResponse) -> list[Any]:
        buffer = io.BytesIO()
        write(buffer, message)
        return [buffer.getvalue()]

    return lambda data: read(data, 0)[0], encoded


def _kafka_python() -> Codec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        response = importlib.import_module("kafka.protocol.consumer.fetch").FetchResponse

    def encoded(message: Any) -> list[Any]:
        message._header = None  # what was decoded lacks the attribute that encoding asks for
        return [message.encode(version=VERSION)]

    return lambda data: response.decode(data, version=VERSION), encoded
