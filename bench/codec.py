"""A Fetch response (version 12) of 10 partitions: our decoder and encoder beside those of kio and kafka-python.

    python bench/codec.py [--json]

Each figure is the best of several rounds in which all take their turn, so the ratios hold on a busy machine too. All
three decode the same bytes, and encode what they decoded to the same bytes, ready for a socket: ours as a list of
pieces in which large records are references. kio (0.6) decodes in Rust and encodes in Python.
Target: at least 8 times kio for decode and encode together.
"""

import argparse
import importlib
import io
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from kio.schema.fetch.v12.response import FetchResponse as KioFetchResponse
from kio.serial import entity_reader, entity_writer

from pipeline.protocol.codec import decode, encode
from pipeline.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

VERSION = 12
PARTITIONS = 10
RECORDS_BYTES = (100, 1024, 16 * 1024)
ROUNDS = 15
CALLS = 200
TARGET_RATIO = 8.0

Codec = tuple[Callable[[bytes], Any], Callable[[Any], list[Any]]]


def main() -> int:
    """Prints the figures for each size of records; 1 if a ratio is below its target."""
    parser = argparse.ArgumentParser(
        description="Codec of a Fetch response of 10 partitions beside kio and kafka-python"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    as_json = parser.parse_args().json
    results = [measure(size) for size in RECORDS_BYTES]
    is_target_met = all(result["ratio"]["kio"] >= TARGET_RATIO for result in results)
    if as_json:
        print(json.dumps({"benchmark": "codec", "target_ratio_to_kio": TARGET_RATIO, "results": results}))
        return int(not is_target_met)
    print(f"Fetch response v{VERSION}, {PARTITIONS} partitions; microseconds, and how many times as fast we are")
    for result in results:
        print(f"\n{result['records_bytes']} B of records per partition")
        for name, figures in result["microseconds"].items():
            times = "   ".join(f"{what} {figures[what]:7.1f}" for what in ("decode", "encode"))
            print(f"  {name:13} {times}   {result['ratio'].get(name, 1):5.1f} x")
    print(f"\ntarget: at least {TARGET_RATIO} x kio for both together")
    return int(not is_target_met)


def measure(records_bytes: int) -> dict[str, Any]:
    """Best times of every codec for one size of records."""
    data = response_bytes(records_bytes)
    codecs = {"pipeline": _pipeline(), "kio": _kio(), "kafka-python": _kafka_python()}
    messages = {}
    for name, (decoder, encoder) in codecs.items():
        messages[name] = decoder(data)
        if b"".join(encoder(messages[name])) != data:
            raise AssertionError(f"{name} encodes other bytes")
    best = {name: {"decode": float("inf"), "encode": float("inf")} for name in codecs}
    for _ in range(ROUNDS):
        for name, (decoder, encoder) in codecs.items():
            best[name]["decode"] = min(best[name]["decode"], _microseconds(decoder, data))
            best[name]["encode"] = min(best[name]["encode"], _microseconds(encoder, messages[name]))
    ours = sum(best["pipeline"].values())
    ratio = {name: round(sum(figures.values()) / ours, 2) for name, figures in best.items() if name != "pipeline"}
    rounded = {name: {what: round(value, 2) for what, value in figures.items()} for name, figures in best.items()}
    return {"records_bytes": records_bytes, "microseconds": rounded, "ratio": ratio}


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


def _microseconds(function: Callable[[Any], Any], argument: Any) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        function(argument)
    return (time.perf_counter() - start) / CALLS * 1e6


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


if __name__ == "__main__":
    sys.exit(main())
