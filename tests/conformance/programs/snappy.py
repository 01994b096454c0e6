"""The two functions of python-snappy that kafka-python calls; python-snappy 0.7 is itself a layer over cramjam."""

from typing import Any

import cramjam


def compress(data: Any) -> Any:
    return bytes(cramjam.snappy.compress_raw(data))


def decompress(data: Any) -> Any:
    return bytes(cramjam.snappy.decompress_raw(data))
