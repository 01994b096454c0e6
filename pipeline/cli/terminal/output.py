"""Output of commands: results on stdout, for people or as JSON; progress and logs on stderr.

Progress is drawn on a terminal only: in a pipe a command prints nothing but its results.
"""

import io
import json
import logging
import math
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NoReturn

import structlog
import typer

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFLICT = 3
EXIT_NOT_EXACT = 4
EXIT_NOT_COMPARED = 5
EXIT_INTERRUPTED = 130

NO_VALUE = "-"
"""Cell of a table without a value."""

EXIT_CODES = """Exit codes: 0 done; 1 failed, with the reason on stderr, or the command shows a trouble that it found; 2
wrong usage or settings; 3 another loader committed first; 4 the audit found a difference, or an hour is not complete; 5
something is not known: an audit is not complete, or a mirror's replica, or a schema, could not be compared; 130
interrupted (143 by SIGTERM); 141 the reader of stdout has left."""


def prepare_streams() -> None:
    """Connect closed standard streams to the null device, and let stdout take every character.

    Otherwise a file or a socket that is opened next would get the descriptor, and all text written to it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            _lead_to_nowhere(number)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_stdout() -> None:
    """Discard all further text on stdout."""
    _lead_to_nowhere(sys.stdout.fileno())


def _lead_to_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def print_json(value: Any) -> None:
    """Print a JSON document on one line, and flush it: a program may be waiting.

    Numbers that JSON lacks become texts: "NaN", "Infinity", "-Infinity".
    """
    say(json_text(value))


def json_text(value: Any) -> str:
    """Return a JSON document on one line, as `print_json` prints it."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_with_texts(value), allow_nan=False)


def _with_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(item) for item in value]
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def say(text: str) -> None:
    """Print a line on stdout."""
    with translated_write_errors():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


@contextmanager
def translated_write_errors() -> Iterator[None]:
    """Guard writes to stdout. Ends the command if one fails; raises BrokenPipeError if the reader has left."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        exit_with(f"cannot write to standard output: {error.strerror}")


def is_terminal() -> bool:
    """True if stdout is a terminal, on which results would mix with progress."""
    return sys.stdout.isatty()


def note(text: str) -> None:
    """Print a line for people on stderr."""
    sys.stderr.write(f"{text}\n")


def exit_with(reason: str, exit_code: int = EXIT_FAILED) -> NoReturn:
    """End the command with its reason on stderr."""
    sys.stderr.write(f"pipeline: {reason}\n")
    raise typer.Exit(exit_code)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns, numbers to the right; `headings` and each row have the same length.

    None is shown as `-`. Control characters are escaped, since clients choose names freely.
    """
    cells = [[NO_VALUE if cell is None else printable(str(cell)) for cell in row] for row in rows]
    headings = [printable(heading) for heading in headings]
    widths = [max(len(heading), *(len(row[i]) for row in cells), 0) for i, heading in enumerate(headings)]
    numeric = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(headings))]

    def line(values: Sequence[str]) -> str:
        aligned = (v.rjust(w) if n else v.ljust(w) for v, w, n in zip(values, widths, numeric, strict=True))
        return "  ".join(aligned).rstrip()

    return "\n".join([line(headings), *(line(row) for row in cells)])


def enumeration(names: Sequence[object], at_most: int) -> str:
    """The first names, separated by commas, with the number of those left out."""
    rest = len(names) - at_most
    return ", ".join(map(str, names[:at_most])) + (f" and {rest} more" if rest > 0 else "")


def counted(count: int, noun: str) -> str:
    """Return a number of things in words: `1 record`, `2 records`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def utc_time(time_ms: int) -> str:
    """Return a time in ms since 1970 as text, in UTC and whole seconds."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def joined(value: Any) -> Any:
    """A cell of a table: the items of a list separated by commas (None if it is empty), other values as they are."""
    return (",".join(map(str, value)) or None) if isinstance(value, list) else value


def printable(text: str) -> str:
    """Return the text on one line, with escapes for unprintable characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Progress:
    """A count that is not drawn."""

    def advance(self, amount: int = 1) -> None:
        """Add `amount` to the count."""

    def describe(self, text: str) -> None:
        """Name the current step."""


class _Bar(Progress):
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def advance(self, amount: int = 1) -> None:
        self._bar.advance(self._task, amount)

    def describe(self, text: str) -> None:
        self._bar.update(self._task, description=text)


@contextmanager
def progress(description: str, total: int | None, *, shown: bool = True) -> Iterator[Progress]:
    """Draw a progress bar on stderr if that is a terminal and `shown` is true. `total` is None if unknown."""
    if not (shown and sys.stderr.isatty()):
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, bar.add_task(description, total=total))


def _event_first(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return the fields of a line with time, level and event in front, for people who read the lines as they are."""
    return {**{name: fields.pop(name) for name in ("timestamp", "level", "event")}, **fields}


def configure_logging(level: str = "info") -> None:
    """Write structured logs to stderr: readable on a terminal, one JSON document a line elsewhere.

    Tracebacks show no values of variables: a password may be among them.
    """
    terminal = sys.stderr.isatty()
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: Any = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if terminal
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info if not terminal else structlog.dev.set_exc_info,
            _event_first,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=max(number, logging.WARNING),
        stream=sys.stderr,
        format="%(levelname)s %(name)s %(message)s",
        force=True,
    )
