"""Batches of transactions, as a mirror copies them."""

import struct

from pipeline.records.batch import write_crc
from pipeline.records.builder import BatchBuilder
from pipeline.records.compression import Codec
from tests.support.broker_in_process import NOW_MS

TRANSACTIONAL = 0x10
CONTROL = 0x20
PRODUCER = {"producer_id": 7, "producer_epoch": 0}


def with_attributes(made: bytearray, attributes: int) -> bytearray:
    struct.pack_into(">h", made, 21, attributes)
    write_crc(made, 0, len(made))
    return made


def marker(offset: int, *, commits: bool) -> bytearray:
    builder = BatchBuilder(Codec.NONE, 1000)
    builder.append(struct.pack(">hh", 0, int(commits)), struct.pack(">hi", 0, 0), (), NOW_MS)
    made = with_attributes(builder.build(**PRODUCER), TRANSACTIONAL | CONTROL)
    struct.pack_into(">q", made, 0, offset)
    return made


def transactional(*values: bytes, producer_id: int) -> bytearray:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    for value in values:
        assert builder.append(None, value, (), 1)
    return with_attributes(builder.build(producer_id=producer_id, producer_epoch=0), TRANSACTIONAL)
