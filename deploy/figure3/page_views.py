"""Events of the figure: page views from a web server's access log, with the time at which a front end took them."""

import json
from typing import Any

from pipeline.cli.demo.access_log import PageView, sample_schema

TOPIC = "access_log"
RECEIVED = "received_ms"


def schema() -> str:
    """Return the Avro schema: that of the demo, and a field for the front end's time."""
    demo = json.loads(sample_schema())
    received = {"name": RECEIVED, "type": "long", "doc": "When the front end took the event: ms since 1970 UTC."}
    return json.dumps({**demo, "namespace": "pipeline.figure3", "fields": [*demo["fields"], received]})


def event_of(view: PageView, received_ms: int) -> dict[str, Any]:
    """Return the event of a page view."""
    return {**view.fields, RECEIVED: received_ms}
