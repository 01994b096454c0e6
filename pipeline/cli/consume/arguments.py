"""Arguments of `consume`."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.terminal.times import TIME_HELP

TopicsOption = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="Topics; with --group also a regular expression that begins with ^."),
]
PartitionOption = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this partition.")]
OffsetOption = Annotated[
    str | None,
    typer.Option(
        "--offset",
        "-o",
        help="Start at earliest (default), latest, or an offset. With --group: where the group has no offset.",
    ),
]
FromTimeOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help=f"Start at a time: {TIME_HELP}."),
]
LastOption = Annotated[
    int | None,
    typer.Option("--last", min=1, metavar="N", help="Only the last N records, in the order of their times."),
]
PerPartitionOption = Annotated[bool, typer.Option("--per-partition", help="With --last: the last N of each partition.")]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME|OFFSET", help="End before a time as of --from, or before an offset."),
]
MaxRecordsOption = Annotated[
    int | None, typer.Option("--max-records", "--count", "-n", "-c", min=1, help="Stop after this many records.")
]
FollowOption = Annotated[
    bool, typer.Option("--follow/--exit", "-f/-e", help="Wait for more records at the end, or end there (default).")
]
GroupOption = Annotated[
    str | None, typer.Option("--group", "-G", help="Read as a member of this group, and commit what was printed.")
]
CountedOption = Annotated[
    str | None,
    typer.Option(
        "--datacenter", help="With --group: report to the audit what was committed, under this datacenter's name."
    ),
]
LayoutOption = Annotated[
    str | None,
    typer.Option("--format", metavar="TEXT", help=r"Layout of a record, such as '%k: %s\n'; see above."),
]
KeySeparatorOption = Annotated[
    str | None, typer.Option("--key-separator", "-K", help=r"Print keys too, with this text after each.")
]
DelimiterOption = Annotated[
    str, typer.Option("--delimiter", "-D", help=r"Text after a record, such as \0. Default: a line end.")
]
NullOption = Annotated[bool, typer.Option("--null", "-Z", help="Print NULL for a key or value that is missing.")]
AvroKeysOption = Annotated[bool, typer.Option("--avro-keys", help="Decode keys too, with --registry.")]
ReaderSchemaOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE.avsc", help="Show values as this schema reads them, with --registry."),
]
SkipBadBatchesOption = Annotated[
    bool,
    typer.Option("--skip-bad-batches", help="Skip batches that cannot be opened, and name them on stderr."),
]
JsonOption = Annotated[bool, typer.Option("--json", "-J", help="Print a JSON document for each record.")]
