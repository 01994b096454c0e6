"""JSON documents in records of the mirror's journals, whose fields may be anything that somebody wrote. Pure."""

import json
from uuid import UUID

from pipeline.errors import PipelineError

MAX_RECORD_BYTES = 16 * 1024
"""Bound of a record's value: names at their longest take less than 2 KiB, the rest is for fields of later versions."""

MAX_TIME_MS = 253_402_300_799_999
"""End of the year 9999: commands show no later times."""


class RecordDocument:
    """The JSON object in a record's value. Each method raises `error` for a field that is not what it returns."""

    __slots__ = ("_error", "_fields")

    def __init__(self, value: bytes | None, error: type[PipelineError]) -> None:
        """Raise `error` for a value that is no JSON object, or larger than MAX_RECORD_BYTES."""
        if value is None:
            raise error("has no value")
        if len(value) > MAX_RECORD_BYTES:
            raise error(f"has {len(value)} bytes, at most {MAX_RECORD_BYTES} are allowed")
        try:
            fields = json.loads(value)
        except (ValueError, RecursionError) as failure:
            raise error("is not JSON") from failure
        if not isinstance(fields, dict):
            raise error("is not a JSON object")
        self._fields = fields
        self._error = error

    def version(self, *, newest: int) -> int:
        """Return the version of the record, 1 to `newest`."""
        version = self._fields.get("version")
        if type(version) is not int or not 1 <= version <= newest:
            raise self._error(f"has version {version!r}; this program reads up to version {newest}")
        return version

    def text(self, field: str, max_length: int, *, min_length: int = 1) -> str:
        """Return printable text of `min_length` to `max_length` characters."""
        value = self._fields.get(field)
        if not (isinstance(value, str) and min_length <= len(value) <= max_length and value.isprintable()):
            raise self._error(f"`{field}` is not printable text of {min_length} to {max_length} characters")
        return value

    def optional_text(self, field: str, max_length: int, *, min_length: int = 1) -> str | None:
        """Return the text of a field; None if the field is null or missing."""
        return None if self._fields.get(field) is None else self.text(field, max_length, min_length=min_length)

    def id(self, field: str) -> UUID:
        """Return a UUID."""
        try:
            return UUID(self.text(field, 100))
        except ValueError as failure:
            raise self._error(f"`{field}` is not a UUID") from failure

    def number(self, field: str, highest: int) -> int:
        """Return a whole number from 0 to `highest`."""
        value = self._fields.get(field)
        if type(value) is not int or not 0 <= value <= highest:  # not True, which is an int to isinstance
            raise self._error(f"`{field}` is not a whole number from 0 to {highest}")
        return value
