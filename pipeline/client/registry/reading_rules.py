"""Tells whether one schema can read the data of another, before data are written with it. Pure."""

import warnings
from typing import Any

from pipeline.client.registry.errors import SerializationError


def reason_not_readable(reader: Any, writer: Any) -> str | None:
    """Return why data of `writer` cannot be read with `reader`; None if they can. Both are JSON with all their types.

    Raises SerializationError for a schema that the Avro library refuses.
    """
    from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
    from avro.schema import make_avsc_object

    with warnings.catch_warnings(action="ignore"):  # of logical types that the library does not know
        try:
            read, written = (make_avsc_object(document, validate_enum_symbols=False) for document in (reader, writer))
            checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
            result = checker.get_compatibility(read, written)
        except Exception as error:  # the library does not document its exceptions
            raise SerializationError(f"not an Avro schema: {type(error).__name__} {error}") from error
    if result.compatibility is SchemaCompatibilityType.compatible:
        return None
    places = " ".join(sorted(result.locations))
    return f"{'; '.join(sorted(result.messages))} at {places}"
