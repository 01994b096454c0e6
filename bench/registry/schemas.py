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


def large_schema_text(version: int) -> str:
    """A record of 300 fields, and one more for each version; types, documentation and defaults as records have them."""
    kinds = (
        *FIELDS,
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "map", "values": ["null", "double"]},
    )
    fields: list[dict[str, object]] = [
        {"name": f"field_{number}", "type": kinds[number % len(kinds)], "doc": f"field {number} of the event"}
        for number in range(298)
    ]
    symbols = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
    place = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
    fields += [{"name": "colour", "type": symbols}, {"name": "place", "type": ["null", place], "default": None}]
    fields += [{"name": f"added_{number}", "type": ["null", "string"], "default": None} for number in range(version)]
    record = {"type": "record", "name": "Large", "namespace": "com.example.events", "fields": fields}
    return json.dumps(record, separators=(",", ":"))
