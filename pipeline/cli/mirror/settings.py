"""`pipeline mirror plan` and `apply`: the settings of a file compared with those of a running mirror, and applied."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli.foreground import Config, Mirror, read_json
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.cli.terminal.settings import Settings, read_settings
from pipeline.errors import ConfigurationError

MAX_SHOWN = 50
"""Topics that are listed without `--all`."""
ShowAll = Annotated[bool, typer.Option("--all", help="List all topics.")]


def show_plan(config: Config, url: Mirror, show_all: ShowAll = False, json: Json = False) -> None:
    """Show what the settings of a file would change in a running mirror. Changes nothing.

    Exit code 0 if the mirror runs with these settings, 1 if there are differences.
    """
    document = _fetch_plan(url, _settings_of(config))
    if json:
        output.print_json(document)
    else:
        _say_plan(document, show_all=show_all)
    if not document["is_same"]:
        output.exit_with("the running mirror has other settings; `pipeline mirror apply` changes them")


def apply_settings(
    config: Config,
    url: Mirror,
    version: Annotated[
        str | None,
        typer.Option(
            "--version", metavar="VERSION", help="Apply only if these settings are in force, as a plan printed."
        ),
    ] = None,
    show_all: ShowAll = False,
    json: Json = False,
) -> None:
    """Have a running mirror go on with the settings of a file, without a restart.

    Copying of flows that are not changed goes on. If other settings are in force than those of --version, or if the
    settings need a restart, nothing is applied.
    """
    settings = _settings_of(config)
    document = _fetch_plan(url, settings)
    if not json:
        _say_plan(document, show_all=show_all)
    applied = read_json(f"{url}/v1/apply", {"settings": settings, "version": version or document["version"]})
    if json:
        output.print_json({"plan": document, **applied})
        return
    output.say(f"applied: version {applied['version']}" if applied["is_changed"] else "nothing to apply")
    if applied["is_of_file"] is False:
        output.say(
            "The file that the mirror was started with has other settings: a restart would put those in force. Copy "
            f"{config} over it."
        )


def _settings_of(config: Path) -> Settings:
    """Return the settings of a file that are right. Raises ConfigurationError that names the file."""
    from pipeline.mirror.config import MirrorConfig

    settings = read_settings(config)
    try:
        MirrorConfig.from_settings(settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"{config}: {error.key}", error.reason) from error
    return settings


def _fetch_plan(url: str, settings: Settings) -> dict[str, Any]:
    document: dict[str, Any] = read_json(f"{url}/v1/plan", {"settings": settings})
    return document


def _say_plan(document: Mapping[str, Any], *, show_all: bool) -> None:
    output.say(f"running settings: version {document['version']}")
    if document["is_same"]:
        output.say("no differences")
        return
    for each in document["need_restart"]:
        output.say(f"needs a restart: {_setting(each)}")
    for each in document["settings"]:
        output.say(f"setting {_setting(each)}")
    for kind in ("sources", "flows"):
        for each in document[kind]:
            changed = "; ".join(map(_setting, each["settings"]))
            output.say(f"{kind[:-1]} {each['name']}: {each['change']}" + (f" ({changed})" if changed else ""))
    for source, reason in sorted(document["unknown_sources"].items()):
        output.say(f"topics of {source} are unknown: {output.printable(reason)}")
    topics = document["topics"]
    if topics:
        rows = [
            [
                each["change"],
                each["source"],
                each["topic"],
                each["partitions"],
                each["flow"],
                each["replica"],
                each.get("remark"),
            ]
            for each in (topics if show_all else topics[:MAX_SHOWN])
        ]
        headings = ["CHANGE", "SOURCE", "TOPIC", "PARTITIONS", "FLOW", "REPLICA", "REMARK"]
        output.say("\n" + output.table(headings, rows))
        if len(rows) < len(topics):
            output.say(f"... and {len(topics) - len(rows)} more: --all lists all topics")


def _setting(change: Mapping[str, Any]) -> str:
    return output.printable(f"{change['setting']}: {_value(change['running'])} -> {_value(change['new'])}")


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
