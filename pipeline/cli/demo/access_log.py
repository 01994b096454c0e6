"""The sample input: lines of a web server's access log as events. Pure but for reading the sample."""

import gzip
import re
import zlib
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any

_LINE = re.compile(
    r"(?P<client_address>\S+) \S+ \S+ \[(?P<time>[^\]]+)\] "
    r'"(?P<method>\S+) (?P<path>.*?)(?: (?P<protocol>HTTP/[\d.]+))?" '
    r'(?P<status>\d{3}) (?P<bytes>\d+|-) "(?P<referrer>(?:[^"\\]|\\.)*)" "(?P<user_agent>(?:[^"\\]|\\.)*)"?'
)
"""The last quote may be missing: a line of the sample ends before it."""


@dataclass(frozen=True, slots=True)
class PageView:
    """A line: its creation time (ms since 1970 UTC) and the fields of the schema `AccessLogEvent`."""

    time_ms: int
    fields: dict[str, Any]

    @property
    def client_address(self) -> str:
        """Address of the client that sent the request."""
        address: str = self.fields["client_address"]
        return address


def parse_line(line: str) -> PageView:
    """Parse a line in the Apache combined format. Raises ValueError for any other line."""
    matched = _LINE.fullmatch(line)
    if matched is None:
        raise ValueError(f"not a line of an access log in the combined format: {line!r}")
    time = datetime.strptime(matched["time"], "%d/%b/%Y:%H:%M:%S %z")
    time_ms = int(time.timestamp()) * 1000
    fields = {
        "client_address": matched["client_address"],
        "time": time_ms,
        "method": matched["method"],
        "path": matched["path"],
        "protocol": matched["protocol"] or "",
        "status": int(matched["status"]),
        "bytes": None if matched["bytes"] == "-" else int(matched["bytes"]),
        "referrer": None if matched["referrer"] == "-" else matched["referrer"],
        "user_agent": None if matched["user_agent"] == "-" else matched["user_agent"],
    }
    return PageView(time_ms, fields)


def home_datacenter(client_address: str, datacenters: tuple[str, ...]) -> str:
    """Return the datacenter that serves a client, always the same for an address."""
    return datacenters[zlib.crc32(client_address.encode()) % len(datacenters)]


def sample_lines() -> list[str]:
    """Return the 10,000 lines of the sample."""
    compressed = files("pipeline.cli.demo").joinpath("samples/access.log.gz").read_bytes()
    return gzip.decompress(compressed).decode().splitlines()


def sample_schema() -> str:
    """Return the Avro schema of the events."""
    return files("pipeline.cli.demo").joinpath("samples/AccessLogEvent.avsc").read_text(encoding="utf-8")
