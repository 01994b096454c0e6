"""Arguments of `produce`."""

from pathlib import Path
from typing import Annotated

import typer

TopicOption = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
FileOption = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="File with a record per line. Default: standard input.")
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", "-p", min=0, help="Partition. Default: by the key; without key, spread over all."),
]
KeySeparatorOption = Annotated[
    str | None,
    typer.Option("--key-separator", "-K", help=r"Text between KEY and VALUE in a line, such as : or \t."),
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="Key of all records that bring none.")]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of each record; repeatable."),
]
DelimiterOption = Annotated[
    str, typer.Option("--delimiter", "-D", help=r"End of a record, such as \0 or \x1e. Default: a line end.")
]
EmptyIsNullOption = Annotated[
    bool, typer.Option("--empty-is-null", "-Z", help="Publish empty values as no value (a tombstone).")
]
NullMarkerOption = Annotated[str | None, typer.Option(help="Text of a value that stands for no value (a tombstone).")]
TimestampsOption = Annotated[
    bool,
    typer.Option(
        "--timestamps",
        help="A line begins with its record's time, in ms since 1970, and the key separator (default: a tab). With "
        '--json-records: take each document\'s "timestamp".',
    ),
]
MaxRecordsOption = Annotated[
    int | None, typer.Option("--max-records", "--count", "-n", "-c", min=1, help="Stop after this many records.")
]
RateOption = Annotated[float | None, typer.Option(min=0.001, help="At most this many records per second.")]
CodecOption = Annotated[str | None, typer.Option("--codec", "-z", help="none, gzip, snappy, lz4 or zstd.")]
AcksOption = Annotated[str | None, typer.Option(help="Acknowledgements to wait for: 0, 1 or all (default).")]
DatacenterOption = Annotated[str | None, typer.Option(help="Report counts to the audit under this datacenter's name.")]
JsonRecordsOption = Annotated[
    bool,
    typer.Option(
        "--json-records", help="Lines are JSON documents with key, value and headers, as `consume --json` prints them."
    ),
]
ResultJsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON. For lines of JSON as records see --json-records.")
]
