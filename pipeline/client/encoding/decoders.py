"""Decoders of keys and values: bytes, text, JSON, Avro through `AvroDeserializer`, and a program's own.

A decoder is an object with the method `decode` of `Decoder`, or a function that takes bytes and returns the data.
The decoders of this module and `AvroDeserializer` leave None, a tombstone or no key, as None.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import trio

from pipeline.client.registry.errors import SerializationError
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.records.builder import Header


class Decoder(Protocol):
    """Turns the bytes of keys or of values into data of a program."""

    def decode(self, topic: str, data: bytes | None, headers: Iterable[Header]) -> Any:
        """Return the data of a key or value. `headers` are the record's.

        Must not wait. A decoder that has to wait first is an `AwaitedDecoder`, and raises trio.WouldBlock here.
        """


@runtime_checkable
class AwaitedDecoder(Decoder, Protocol):
    """Decoder that must wait sometimes, as AvroDeserializer does for the schema of a datum."""

    async def deserialize(self, data: bytes | None, headers: Iterable[Header] = ()) -> Any:
        """Return what `decode` returns, after waiting."""


DecodeFunction = Callable[[bytes | None], Any]
DecoderLike = Decoder | DecodeFunction
"""A decoder, or a function that returns the data of the bytes that it is given."""


class BytesDecoder:
    """Leaves bytes as they are."""

    def decode(self, topic: str, data: bytes | None, headers: Iterable[Header]) -> Any:  # noqa: ARG002
        """Return the bytes."""
        return data


class StrDecoder:
    """Decodes UTF-8."""

    def decode(self, topic: str, data: bytes | None, headers: Iterable[Header]) -> Any:  # noqa: ARG002
        """Return the text. Raises SerializationError for bytes that are not UTF-8."""
        if data is None:
            return None
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise SerializationError(f"not UTF-8: {error}") from error


class JsonDecoder:
    """Decodes JSON in UTF-8."""

    def decode(self, topic: str, data: bytes | None, headers: Iterable[Header]) -> Any:  # noqa: ARG002
        """Return the value of the JSON text. Raises SerializationError for bytes that are no JSON."""
        if data is None:
            return None
        try:
            return json.loads(str(data, "utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise SerializationError(f"not JSON: {type(error).__name__}: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


@dataclass(frozen=True, slots=True)
class _FunctionDecoder:
    """Decodes with a function, which is given None for a tombstone or no key."""

    function: DecodeFunction

    def decode(self, topic: str, data: bytes | None, headers: Iterable[Header]) -> Any:  # noqa: ARG002
        return self.function(data)


def as_decoder(given: DecoderLike) -> Decoder:
    """Return the decoder that a program gave. Raises ConfigurationError for an object that is none."""
    if not isinstance(given, (type, str, bytes, bytearray)):  # text and bytes have methods of these names
        if callable(getattr(given, "decode", None)):
            return given  # type: ignore[return-value]
        if callable(given):
            return _FunctionDecoder(given)
    raise ConfigurationError("decoder", f"is {given!r}, must be an object with `decode`, or a function")


def decode_now(decoder: Decoder, topic: str, data: bytes | None, headers: Iterable[Header]) -> Any:
    """Return the data of a key or value. Raises SerializationError, and trio.WouldBlock if the decoder must wait."""
    try:
        return decoder.decode(topic, data, headers)
    except (PipelineError, trio.WouldBlock):
        raise
    except Exception as error:  # a program's own decoder
        raise _failed(decoder, topic, error) from error


async def decode_after_wait(decoder: Decoder, topic: str, data: bytes | None, headers: Iterable[Header]) -> Any:
    """Return the data of a key or value whose decoder must wait. Raises as `decode_now`, and what waiting raises."""
    if not isinstance(decoder, AwaitedDecoder):
        raise ConfigurationError("decoder", f"{type(decoder).__name__} must wait for {topic}, and has no `deserialize`")
    try:
        return await decoder.deserialize(data, headers)
    except PipelineError:
        raise
    except Exception as error:  # a program's own decoder
        raise _failed(decoder, topic, error) from error


def _failed(decoder: Decoder, topic: str, error: Exception) -> SerializationError:
    named = decoder.function if isinstance(decoder, _FunctionDecoder) else type(decoder)
    name = getattr(named, "__qualname__", None) or repr(named)
    return SerializationError(f"{name} failed for {topic}: {type(error).__name__}: {error}")
