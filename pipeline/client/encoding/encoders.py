"""Encoders of keys and values: bytes, text, JSON, Avro through `AvroSerializer`, and a program's own.

An encoder is an object with the method `encode` of `Encoder`, or a function that takes the data and returns bytes.
None is no datum but a tombstone, which the encoders of this module and `AvroSerializer` leave as None.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import trio

from pipeline.client.registry.errors import SerializationError
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.records.builder import Header

_BYTES = (bytes, bytearray, memoryview)


class Encoder(Protocol):
    """Turns the keys or the values that a program sends into bytes."""

    def encode(self, topic: str, data: Any, headers: list[Header]) -> bytes | None:
        """Return the bytes of a key or value. May append to `headers`, the headers of the record.

        Must not wait. An encoder that has to wait first is an `AwaitedEncoder`, and raises trio.WouldBlock here.
        """


@runtime_checkable
class AwaitedEncoder(Encoder, Protocol):
    """Encoder that must wait sometimes, as AvroSerializer does for the schema of a topic."""

    async def serialize(self, topic: str, datum: Any, headers: list[Header] | None = None) -> bytes | None:
        """Return what `encode` returns, after waiting."""


EncodeFunction = Callable[[Any], bytes | None]
EncoderLike = Encoder | EncodeFunction
"""An encoder, or a function that returns the bytes of the data that it is given."""


class BytesEncoder:
    """Takes bytes as they are, and nothing else."""

    def encode(self, topic: str, data: Any, headers: list[Header]) -> bytes | None:  # noqa: ARG002
        """Return the bytes. Raises SerializationError for anything else."""
        if data is None or isinstance(data, _BYTES):
            return data  # type: ignore[return-value]  # all are copied into the batch
        raise SerializationError(f"must be bytes for {topic}, and is {type(data).__name__}")


class StrEncoder:
    """Encodes text as UTF-8."""

    def encode(self, topic: str, data: Any, headers: list[Header]) -> bytes | None:  # noqa: ARG002
        """Return the text in UTF-8. Raises SerializationError for anything but text, and for lone surrogates."""
        if data is None:
            return None
        if not isinstance(data, str):
            raise SerializationError(f"must be text for {topic}, and is {type(data).__name__}")
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise SerializationError(f"text for {topic} cannot be encoded: {error}") from error


class JsonEncoder:
    """Encodes dicts, lists, text, numbers and booleans as JSON in UTF-8, without spaces.

    `default` makes something of those of any other object, as json.dumps uses it.
    """

    def __init__(self, default: Callable[[Any], Any] | None = None) -> None:
        self._encode = json.JSONEncoder(
            separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=default
        ).encode

    def encode(self, topic: str, data: Any, headers: list[Header]) -> bytes | None:  # noqa: ARG002
        """Return the JSON text. Raises SerializationError for an object without one, such as NaN."""
        if data is None:
            return None
        try:
            return self._encode(data).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise SerializationError(f"data for {topic} have no JSON: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class _FunctionEncoder:
    """Encodes with a function. None is encoded by it, too: the function decides what None is."""

    function: EncodeFunction

    def encode(self, topic: str, data: Any, headers: list[Header]) -> bytes | None:  # noqa: ARG002
        return self.function(data)


def as_encoder(given: EncoderLike) -> Encoder:
    """Return the encoder that a program gave. Raises ConfigurationError for an object that is none."""
    if not isinstance(given, (type, str, bytes, bytearray)):  # text and bytes have methods of these names
        if callable(getattr(given, "encode", None)):
            return given  # type: ignore[return-value]
        if callable(given):
            return _FunctionEncoder(given)
    raise ConfigurationError("encoder", f"is {given!r}, must be an object with `encode`, or a function")


def encode_now(encoder: Encoder, topic: str, data: Any, headers: list[Header]) -> bytes | None:
    """Return the bytes of a key or value. Raises SerializationError, and trio.WouldBlock if the encoder must wait."""
    try:
        encoded = encoder.encode(topic, data, headers)
    except (PipelineError, trio.WouldBlock):
        raise
    except Exception as error:  # a program's own encoder
        raise _failed(encoder, topic, error) from error
    return _bytes(encoder, topic, encoded)


async def encode_after_wait(encoder: Encoder, topic: str, data: Any, headers: list[Header]) -> bytes | None:
    """Return the bytes of a key or value whose encoder must wait. Raises as `encode_now`, and what waiting raises."""
    if not isinstance(encoder, AwaitedEncoder):
        raise ConfigurationError("encoder", f"{type(encoder).__name__} must wait for {topic}, and has no `serialize`")
    try:
        encoded = await encoder.serialize(topic, data, headers)
    except PipelineError:
        raise
    except Exception as error:  # a program's own encoder
        raise _failed(encoder, topic, error) from error
    return _bytes(encoder, topic, encoded)


def _failed(encoder: Encoder, topic: str, error: Exception) -> SerializationError:
    return SerializationError(f"{_name(encoder)} failed for {topic}: {type(error).__name__}: {error}")


def _bytes(encoder: Encoder, topic: str, encoded: bytes | None) -> bytes | None:
    if encoded is not None and not isinstance(encoded, _BYTES):
        raise SerializationError(f"{_name(encoder)} gave {type(encoded).__name__} for {topic} instead of bytes")
    return encoded


def _name(encoder: Encoder) -> str:
    named = encoder.function if isinstance(encoder, _FunctionEncoder) else type(encoder)
    return getattr(named, "__qualname__", None) or repr(named)
