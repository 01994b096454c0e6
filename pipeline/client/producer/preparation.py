"""Preparation of a record before it is accepted, if a program asks for it: interceptors, then encoders.

A producer without both never comes here, so that its records cost no more than before.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import trio

from pipeline.client.encoding.encoders import Encoder, EncoderLike, as_encoder, encode_after_wait, encode_now
from pipeline.client.producer.batches import DeliveryCallback
from pipeline.client.producer.delivery import Delivery
from pipeline.client.producer.interceptors import Interceptors, ProducerInterceptor
from pipeline.client.producer.record import ProducerRecord
from pipeline.records.builder import Header

Accept = Callable[
    [str, bytes | None, bytes | None, int | None, int | None, Sequence[Header], DeliveryCallback | None],
    Awaitable[Delivery],
]


class Preparation:
    """The encoders and interceptors of a producer."""

    def __init__(
        self,
        key_encoder: EncoderLike | None = None,
        value_encoder: EncoderLike | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
    ) -> None:
        """Raises ConfigurationError for objects that are no encoders or interceptors."""
        self._key_encoder = None if key_encoder is None else as_encoder(key_encoder)
        self._value_encoder = None if value_encoder is None else as_encoder(value_encoder)
        self._interceptors = Interceptors(interceptors) if interceptors else None

    async def send(
        self,
        record: ProducerRecord,
        callback: DeliveryCallback | None,
        accept: Accept,
        key_encoder: EncoderLike | None,
        value_encoder: EncoderLike | None,
    ) -> Delivery:
        """Encode a record and have it accepted. Raises SerializationError, and what `accept` raises."""
        interceptors = self._interceptors
        if interceptors is not None:
            record = interceptors.on_send(record)
            callback = interceptors.callback(record, callback)
        try:
            headers = list(record.headers)
            of_key = self._key_encoder if key_encoder is None else as_encoder(key_encoder)
            of_value = self._value_encoder if value_encoder is None else as_encoder(value_encoder)
            key = await _encoded(of_key, record.topic, record.key, headers)
            value = await _encoded(of_value, record.topic, record.value, headers)
            return await accept(
                record.topic, value, key, record.partition, record.timestamp_ms, headers or (), callback
            )
        except Exception as error:
            if interceptors is not None:
                interceptors.on_error(record, error)
            raise


def preparation_of(
    key_encoder: EncoderLike | None, value_encoder: EncoderLike | None, interceptors: Iterable[ProducerInterceptor]
) -> Preparation | None:
    """Return the preparation of a producer with these; None if there are none. Raises ConfigurationError."""
    given = tuple(interceptors)
    if key_encoder is None and value_encoder is None and not given:
        return None
    return Preparation(key_encoder, value_encoder, given)


async def _encoded(encoder: Encoder | None, topic: str, data: Any, headers: list[Header]) -> bytes | None:
    if encoder is None:
        return data  # type: ignore[no-any-return]  # bytes, or the batch refuses them
    try:
        return encode_now(encoder, topic, data, headers)
    except trio.WouldBlock:
        return await encode_after_wait(encoder, topic, data, headers)
