"""Fields that stored schemas have in common: most versions of a subject differ in few.

Invariants:

A. A field is shared only if no named type is within: it then means the same in every schema, at the same depth.
B. A shared field takes the steps that parsing it took, so that no verdict depends on what was parsed before.
"""

import marshal
import threading
from typing import Any, Final

from pipeline.schema_registry.avro.types import Field

MAX_SHARED_BYTES: Final = 1_000_000
"""Of JSON whose fields are kept; a field takes some ten times the memory of its JSON."""
MAX_FIELD_BYTES: Final = 2_000
_ENTRY_BYTES: Final = 100
_WITHOUT_REFERENCES: Final = 2
"""The format of `marshal` that depends on the value alone."""

FieldKey = tuple[int, bytes]
SharedField = tuple[Field, int]
"""A field, and the steps that parsing it took."""


def field_key(field: dict[str, Any], depth: int) -> FieldKey:
    """Return what tells the JSON of fields apart, of records at this depth. Takes a tenth of the time of parsing."""
    return depth, marshal.dumps(field, _WITHOUT_REFERENCES)


class SharedFields:
    """Fields by their JSON. All are forgotten when they are too many. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fields: dict[FieldKey, SharedField] = {}
        self._bytes = 0

    def get(self, key: FieldKey) -> SharedField | None:
        """Return the field of a key, None if there is none."""
        return self._fields.get(key)

    def keep(self, key: FieldKey, field: Field, steps: int) -> None:
        """Keep a field unless its JSON is long."""
        if len(key[1]) > MAX_FIELD_BYTES:
            return
        with self._lock:
            if self._bytes > MAX_SHARED_BYTES:
                self._fields.clear()
                self._bytes = 0
            self._fields[key] = field, steps
            self._bytes += len(key[1]) + _ENTRY_BYTES
