"""Compaction in plain Python, record by record: the twin that the kernels of compaction are tested against.

It reads whole logs into memory and makes an object for each record, so it is for tests and benchmarks alone.
"""

from collections.abc import Collection, Mapping

from pipeline.log.transactions import AbortedTransaction, is_abort
from pipeline.records.batch import (
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    BatchHeader,
    TimestampType,
    iterate_headers,
    verify_crc,
    write_header,
)
from pipeline.records.builder import encode_headers, encode_varint
from pipeline.records.compression import compress
from pipeline.records.record import Record, records_of_batch

_CODEC_MASK = 0x07
_MASK = 2**64 - 1


def map_plainly(
    log: bytes,
    *,
    from_offset: int,
    max_keys: int,
    segment_ends: Collection[int] = (),
    aborted: Collection[AbortedTransaction] = (),
) -> tuple[dict[bytes, int], int]:
    """The last offset of each key from `from_offset` on, and the offset up to which `max_keys` keys are enough.

    Behind a segment's last batch there may be a gap: then it reaches up to the segment's end.
    """
    found: dict[bytes, int] = {}
    end_offset = from_offset
    for position, header in iterate_headers(log):
        verify_crc(log, position, header)
        end_offset = max([end_offset, *(end for end in segment_ends if end <= header.base_offset)])
        if header.last_offset < from_offset:
            continue
        if not header.is_control and _transaction(header, aborted) is None:
            for record in records_of_batch(log, position, header):
                if record.key is None or record.offset < from_offset:
                    continue
                if record.key not in found and len(found) >= max_keys:
                    return found, end_offset
                found[record.key] = record.offset
                end_offset = record.offset + 1
        end_offset = header.next_offset
    return found, max([end_offset, *segment_ends])


def select_plainly(
    log: bytes,
    last_offsets: Mapping[bytes, int],
    *,
    mapped_end: int,
    now_ms: int,
    delete_retention_ms: int,
    kept_offsets: Collection[int] = (),
    group_ends: Collection[int] = (),
    aborted: Collection[AbortedTransaction] = (),
) -> bytes:
    """The batches of a log from its start on, cleaned. `group_ends`: last offset of each group of segments."""
    cleaned = bytearray()
    batches = list(iterate_headers(log))
    begun = set()
    for position, header in batches:
        verify_crc(log, position, header)
        whole = log[position : position + header.size_bytes]
        is_last = position == batches[-1][0] or header.last_offset in group_ends
        is_needed = is_last or (header.producer_id != NO_PRODUCER_ID and header.last_offset in kept_offsets)
        has_horizon = bool(header.attributes & DELETE_HORIZON)
        records = list(records_of_batch(log, position, header))
        if header.is_control:
            is_marker = is_abort(whole, header) is not None
            if not is_marker or header.producer_id in begun:
                cleaned += whole
            elif not has_horizon:
                cleaned += _batch(header, records, now_ms + delete_retention_ms)
            elif header.base_timestamp > now_ms or is_needed or any(header.last_offset == a[2] for a in aborted):
                cleaned += whole
            if is_marker:
                begun.discard(header.producer_id)
            continue
        if header.is_transactional:
            begun.add(header.producer_id)
        is_aborted = _transaction(header, aborted) is not None
        kept = [
            record
            for record in ([] if is_aborted else records)
            if record.offset >= mapped_end
            or (
                record.key is not None
                and record.offset >= last_offsets.get(record.key, -1)
                and not (record.value is None and has_horizon and header.base_timestamp <= now_ms)
            )
        ]
        gets_horizon = not has_horizon and any(record.value is None for record in kept)
        is_as_it_was = len(kept) == len(records) and not gets_horizon
        if is_as_it_was and (kept or not header.is_transactional):
            cleaned += whole if kept or is_needed else b""
        elif kept:
            cleaned += _batch(header, kept, now_ms + delete_retention_ms if gets_horizon else None)
        elif is_needed:
            cleaned += _empty_batch(header)
    return bytes(cleaned)


def left_plainly(log: bytes, aborted: Collection[AbortedTransaction]) -> list[AbortedTransaction]:
    """The aborted transactions of which a batch of records is in the log."""
    found = {_transaction(header, aborted) for _, header in iterate_headers(log) if not header.is_control}
    return [transaction for transaction in aborted if transaction in found]


def _transaction(header: BatchHeader, aborted: Collection[AbortedTransaction]) -> AbortedTransaction | None:
    """The aborted one that the records of a batch are of."""
    for transaction in aborted:
        producer_id, first_offset, last_offset, _ = transaction
        if header.producer_id == producer_id and first_offset <= header.base_offset <= last_offset:
            return transaction if header.is_transactional else None
    return None


def _batch(header: BatchHeader, records: list[Record], horizon_ms: int | None) -> bytearray:
    base_timestamp = header.base_timestamp if horizon_ms is None else horizon_ms
    payload = bytearray()
    for record in records:
        body = b"\x00" + encode_varint(record.timestamp_ms - base_timestamp)
        body += encode_varint(record.offset - header.base_offset)
        body += _field(record.key) + _field(record.value) + encode_headers(record.headers)
        payload += encode_varint(len(body)) + body
    made = bytearray(HEADER_SIZE)
    made += compress(header.codec, payload)
    is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    newest = header.max_timestamp if is_append_time else max(-1, *(record.timestamp_ms for record in records))
    changed = header._replace(
        batch_length=len(made) - LOG_OVERHEAD,
        attributes=header.attributes | (DELETE_HORIZON if horizon_ms is not None else 0),
        base_timestamp=base_timestamp,
        max_timestamp=newest,
        record_count=len(records),
    )
    write_header(made, changed)
    return made


def _field(value: bytes | None) -> bytes:
    return encode_varint(-1) if value is None else encode_varint(len(value)) + value


def _empty_batch(header: BatchHeader) -> bytearray:
    made = bytearray(HEADER_SIZE)
    attributes = header.attributes & ~(_CODEC_MASK | DELETE_HORIZON | TRANSACTIONAL)
    changed = header._replace(
        batch_length=HEADER_SIZE - LOG_OVERHEAD,
        attributes=attributes,
        base_timestamp=-1,
        record_count=0,
    )
    write_header(made, changed)
    return made


def hash_plainly(key: bytes, k0: int, k1: int) -> tuple[int, int]:
    """SipHash-2-4 with 128 bits."""
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]
    whole = len(key) // 8 * 8
    words = [int.from_bytes(key[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(key[whole:], "little") | (len(key) & 0xFF) << 56)
    for word in words:
        v[3] ^= word
        _rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xEE
    _rounds(v, 4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    _rounds(v, 4)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def _rounds(v: list[int], count: int) -> None:
    for _ in range(count):
        v[0] = (v[0] + v[1]) & _MASK
        v[1] = _rotate(v[1], 13) ^ v[0]
        v[0] = _rotate(v[0], 32)
        v[2] = (v[2] + v[3]) & _MASK
        v[3] = _rotate(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & _MASK
        v[3] = _rotate(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & _MASK
        v[1] = _rotate(v[1], 17) ^ v[2]
        v[2] = _rotate(v[2], 32)


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK
