"""`pipeline mirror status`: sources, flows, and partitions with trouble."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from pipeline.cli.foreground import Mirror, read_json
from pipeline.cli.mirror.pausing import scope_text
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json

WELL = frozenset({"caught_up", "copying", "elsewhere", "paused"})
"""States of partitions without trouble."""
ELSEWHERE = "elsewhere"
"""State of partitions that another member of the mirror's group copies."""
MAX_TROUBLES = 50
"""Partitions with trouble that are listed without `--all`."""
MAX_NAMED = 10
UNKNOWN = "unknown"


def status(
    url: Mirror,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this source topic; may be repeated.")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="List all partitions, not only those with trouble.")] = False,
    json: Json = False,
) -> None:
    """Show each source with its lag, and the partitions with trouble.

    Exit code 1 if a source or the hub does not answer, a partition is not copied, or a lag is unknown.
    """
    document = read_json(f"{url}/v1/status")
    if topic:
        _choose_topics(document, topic)
    if json:
        output.print_json(document)
    else:
        _print_status(document, show_all=show_all, show_flows=not topic)
    if found := status_troubles(document):
        output.exit_with("; ".join(found))


def status_troubles(document: Mapping[str, Any]) -> list[str]:
    """Return what keeps a mirror from being well, in sentences; none if all partitions are copied with a known lag."""
    found = [f"the hub: {document['error']}"] if document["error"] else []
    for source in document["sources"]:
        name = source["name"]
        if source["error"] or not source["up"]:
            found.append(f"source {name}: {source['error'] or 'is not up'}")
        if source.get("groups") and source["groups"]["error"]:
            found.append(f"offsets of groups of {name}: {source['groups']['error']}")
        bad = [partition for partition in source["partitions"] if partition["state"] not in WELL]
        unknown = [partition for partition in source["partitions"] if _has_unknown_lag(partition)]
        if bad:
            found.append(f"{output.counted(len(bad), 'partition')} of {name} not copied")
        if unknown:
            found.append(f"{output.counted(len(unknown), 'partition')} of {name} with unknown lag")
    if group := document.get("group"):  # older mirrors have none
        if group["error"] or not group["is_registered"]:
            found.append(f"group {group['name']}: {group['error'] or 'this process is not registered'}")
        if group["unowned"]:
            found.append(f"{output.counted(group['unowned'], 'unit')} of group {group['name']} without a member")
    return found + _remarks(document, is_copied=False)


def _has_unknown_lag(partition: Mapping[str, Any]) -> bool:
    return partition["lag"] is None and partition["state"] != ELSEWHERE  # its copier reports the lag


def _remarks(document: Mapping[str, Any], *, is_copied: bool) -> list[str]:
    """Return the flows' remarks on topics, in sentences; those on topics that are copied, or on the others."""
    return [
        f"flow {flow['name']}: {each['topic']}: {output.printable(each['remark'])}"
        for flow in document.get("flows", ())  # older mirrors have none
        for each in flow["remarks"]
        if each["is_copied"] == is_copied
    ]


def _choose_topics(document: dict[str, Any], topics: Sequence[str]) -> None:
    """Leave the partitions of these topics in the document. Ends the command if a topic has none."""
    for source in document["sources"]:
        chosen = [partition for partition in source["partitions"] if partition["topic"] in topics]
        source["partitions"] = chosen
        source["states"] |= {state: sum(each["state"] == state for each in chosen) for state in source["states"]}
        source["unknown_lags"] = sum(_has_unknown_lag(each) for each in chosen)
    for flow in document.get("flows", ()):
        flow["remarks"] = [each for each in flow["remarks"] if each["topic"] in topics]
    found = {partition["topic"] for source in document["sources"] for partition in source["partitions"]}
    found |= {each["topic"] for flow in document.get("flows", ()) for each in flow["remarks"]}
    if missing := sorted(set(topics) - found):
        output.exit_with(f"no partition of topic {output.enumeration(missing, MAX_NAMED)} is mirrored")


def _print_status(document: Mapping[str, Any], *, show_all: bool, show_flows: bool) -> None:
    headings = ["SOURCE", "UP", "PARTITIONS", "UNKNOWN-LAG", "LARGEST-LAG", "LARGEST-SECONDS", "LAST-ANSWER", "STATES"]
    output.say(output.table(headings, [_summary(source) for source in document["sources"]]))
    if document.get("group"):  # older mirrors have none
        _say_members(document["group"])
    flows = [flow for flow in document.get("flows", ()) if show_flows and "states" in flow]  # older mirrors have none
    if flows:
        columns = ["FLOW", "SOURCE", "PARTITIONS", "LAG", "BYTES", "SECONDS", "BYTES/S", "THROTTLE", "STATES"]
        output.say("\n" + output.table(columns, [_flow_row(flow) for flow in flows]) + "\n")
    for flow in flows:
        if (last := flow["last_error"]) is not None:
            text = (
                f"flow {flow['name']}: last error {last['age_seconds']:.0f} s ago, {last['partition']}: {last['error']}"
            )
            output.say(output.printable(text))
    for topic in document.get("topics", ()):  # older mirrors have none
        for problem in topic["problems"]:
            output.say(f"settings of {topic['topic']}: {output.printable(problem)}")
    for pause in document.get("pauses", ()):
        output.say(f"paused since {output.utc_time(pause['time_ms'])}: {scope_text(pause)}")
    _say_settings(document.get("settings") or {})  # older mirrors have none
    if document["error"]:
        output.say(f"destination: {output.printable(document['error'])}")
    for source in document["sources"]:
        if source["error"]:
            output.say(f"{source['name']}: {output.printable(source['error'])}")
        if source.get("groups"):  # older mirrors have none
            _say_groups(source["name"], source["groups"])
    for remark in _remarks(document, is_copied=True):
        output.say(remark)
    listed = [
        (source["name"], partition)
        for source in document["sources"]
        for partition in source["partitions"]
        if show_all or partition["state"] not in WELL or _has_unknown_lag(partition)
    ]
    if not listed:
        return
    shown = listed if show_all else listed[:MAX_TROUBLES]
    columns = ["SOURCE", "FLOW", "PARTITION", "REPLICA", "STATE", "POSITION", "LAG", "SECONDS", "BYTES/S", "ERROR"]
    output.say("\n" + output.table(columns, [_row(name, partition) for name, partition in shown]))
    if len(shown) < len(listed):
        output.say(f"... and {len(listed) - len(shown)} more with trouble: --all lists all partitions")
    advices = dict.fromkeys((each["state"], each["advice"]) for _, each in listed if each["advice"])
    for state, advice in advices:
        output.say(f"{state}: {advice}")


def _say_settings(settings: Mapping[str, Any]) -> None:
    """Say whether a restart would put other settings in force."""
    if settings.get("is_of_file") is False:
        output.say("settings: the mirror's file has others, which a restart would put in force")
    if settings.get("file_error"):
        output.say(f"settings: the mirror's file is wrong: {output.printable(settings['file_error'])}")


def _say_members(group: Mapping[str, Any]) -> None:
    """Say who shares the work of this mirror."""
    rows: list[list[object]] = []
    for each in group["members"]:
        role = "leader" if each["member"] == group["leader"] else ""
        name = f"{each['member']} (this one)" if each["member"] == group["member"] else each["member"]
        if not each.get("selects_the_same", True):  # older mirrors do not say
            name += " (other sources or flows)"
        duties = [source for source, member in group["duties"].items() if member == each["member"]]
        rows.append([name, role, each["http"], each["partitions"], ", ".join(duties)])
    output.say(f"\ngroup {group['name']}: {output.counted(len(rows), 'member')}")
    output.say(output.table(["MEMBER", "ROLE", "HTTP", "PARTITIONS", "OTHER-WORK-OF"], rows))


def _summary(source: Mapping[str, Any]) -> list[object]:
    partitions = source["partitions"]
    age_s = source["answer_age_seconds"]
    return [
        source["name"],
        "yes" if source["up"] else "no",
        len(partitions),
        source["unknown_lags"],
        max((each["lag"] for each in partitions if each["lag"] is not None), default=None),
        max((each["lag_seconds"] for each in partitions if each["lag_seconds"] is not None), default=None),
        "never" if age_s is None else f"{age_s:.1f} s ago",
        _counts(source["states"]),
    ]


def _flow_row(flow: Mapping[str, Any]) -> list[object]:
    lags = [UNKNOWN if flow[key] is None else flow[key] for key in ("lag", "lag_bytes", "lag_seconds")]
    throttle = flow.get("throttle_bytes_per_second")
    return [
        flow["name"],
        flow["source"],
        flow["partitions"],
        *(lags if flow["partitions"] else (None, None, None)),
        round(flow["bytes_per_second"]),
        f"{throttle}{' (waits)' if flow['is_throttled'] else ''}" if throttle else None,
        _counts(flow["states"]),
    ]


def _counts(states: Mapping[str, int]) -> str | None:
    return ", ".join(f"{count} {state}" for state, count in states.items() if count) or None


def _row(source: str, partition: Mapping[str, Any]) -> list[object]:
    return [
        source,
        partition.get("flow"),  # older mirrors have none
        f"{partition['topic']}-{partition['partition']}",
        f"{partition['replica_topic']}-{partition['replica_partition']}",
        partition["state"],
        partition["position"],
        UNKNOWN if partition["lag"] is None else partition["lag"],
        UNKNOWN if partition["lag_seconds"] is None else partition["lag_seconds"],
        round(partition["bytes_per_second"]),
        partition["error"] or "",
    ]


def _say_groups(source: str, groups: Mapping[str, Any]) -> None:
    """Say how far the committed offsets of a source's groups were copied."""
    age = "not compared yet" if groups["age_seconds"] is None else f"compared {groups['age_seconds']:.1f} s ago"
    output.say(
        f"{source}: offsets of groups: {age}, {groups['copied']} copied, {groups['waiting']} wait, "
        f"{groups['left_alone_count']} left alone"
    )
    for one in groups["left_alone"]:
        partition = f" in {one['topic']}-{one['partition']}" if "topic" in one else ""
        output.say(f"{source}: group {output.printable(one['group'])}{partition} {one['reason']}")
    if groups["error"]:
        output.say(f"{source}: offsets of groups: {groups['error']}")
