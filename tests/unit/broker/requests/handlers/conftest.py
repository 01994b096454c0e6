"""What tests of handlers look at."""

from typing import Any

from pipeline.records.batch import iterate_headers


def headers_of(data: Any) -> list[tuple[int, int]]:
    return [(header.base_offset, header.last_offset) for _, header in iterate_headers(data.records)]
