"""The schemas of the benchmark: the schema of an id is known to every process, and no two are equal."""

import json

FIELDS = ("string", "long", "double", ["null", "string"], {"type": "array", "items": "long"})


def schema_text(schema_id: int) -> str:
    """A record of five fields, some 450 characters."""
    fields = [
        {"name": f"field_{number}", "type": kind, "doc": f"field {number} of the event"}
        for number, kind in enumerate(FIELDS)
    ]
    record = {"type": "record", "name": f"Event{schema_id}", "namespace": "com.example.events", "fields": fields}
    return json.dumps(record, separators=(",", ":"))
