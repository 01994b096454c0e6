"""Documents of the audit as texts for people. Pure."""

from typing import Any

from pipeline.cli.terminal import output

STAGES = ("produced", "live", "replica", "loaded")


def render(document: dict[str, Any], topic: str | None = None) -> str:
    """Return the report for people: a line for each topic and hour, differences, unreadable clusters."""
    hours = document["hours"]
    shown = [stage for stage in STAGES if any(stage in hour["stages"] for hour in hours)]
    rows = [
        [
            hour["topic"],
            hour["hour"],
            *(hour["stages"][stage]["records"] if stage in hour["stages"] else None for stage in shown),
            hour["status"],
        ]
        for hour in hours
    ]
    lines = [output.table(["TOPIC", "HOUR", *(stage.upper() for stage in shown), "STATUS"], rows)] if rows else []
    lines += [finding["text"] for hour in hours for finding in hour["findings"]]
    clusters = document["clusters"]
    lines += [f"{name}: {state['error']}" for name, state in clusters.items() if state["error"]]
    lines += [
        f"{name}: {state['unreadable']} records of its audit topic cannot be read by this version"
        for name, state in clusters.items()
        if state["unreadable"]
    ]
    if document["routes_error"]:
        lines.append(
            f"the mirror's table could not be read, so the report uses its last known state: {document['routes_error']}"
        )
    exact = sum(hour["status"] == "exact" for hour in hours)
    explained = sum(hour["status"] == "explained" for hour in hours)
    nothing = "No counts yet." if topic is None else f"No counts yet for topic {topic}."
    lines.append(f"{exact} of {len(hours)} hours exact." if hours else nothing)
    recompressed = sum(hour["status"] == "recompressed" for hour in hours)
    if recompressed:
        lines.append(
            f"{recompressed} hours are recompressed: records, batches and headers are equal. `pipeline mirror verify` "
            "compares the contents of replicas."
        )
    if explained:
        lines.append(f"{explained} hours lack records as the mirror's gaps explain: see `pipeline mirror gaps`.")
    if not document["complete"]:
        lines.append("Some counts are not known yet, so no verdict is certain.")
    return "\n".join(lines)
