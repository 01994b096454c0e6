"""`pipeline load export`: committed files as plain folders."""

from typing import Annotated

import typer

from pipeline.cli.load.commits import Root, Topic
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json


def export(
    topic: Topic,
    root: Root,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="Folder of the export.")],
    style: Annotated[str, typer.Option("--style", help="Names of folders: hive (dt=/hour=) or hourly.")] = "hive",
    json: Json = False,
) -> None:
    """Make plain folders hold exactly the committed files, for Hive and other readers of whole folders."""
    from pipeline.hadoop.commit.layout import PATH_FORMATS
    from pipeline.hadoop.table.export import export_table

    chosen = next((path_format for path_format in PATH_FORMATS if path_format == style), None)
    if chosen is None:
        output.exit_with(f"--style must be one of {', '.join(PATH_FORMATS)}")
    result = export_table(root, topic, to, chosen)
    if json:
        output.print_json({"topic": topic, "commit": result.sequence, "added": result.added, "removed": result.removed})
    else:
        added = output.counted(result.added, "file")
        output.say(f"{topic}: commit {result.sequence}: {added} added, {result.removed} removed.")
