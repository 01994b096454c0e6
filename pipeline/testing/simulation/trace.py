"""Trace of a simulated run, line by line, to compare two runs and to understand a failure."""

import hashlib
import sys
import traceback
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import trio

from pipeline.errors import PipelineError

MAX_VALUE_CHARACTERS = 300


@dataclass(eq=False)
class Trace:
    """The lines, each with its simulated time and the process it is about; and what no run may contain."""

    lines: list[str] = field(default_factory=list)
    faults_of_code: list[str] = field(default_factory=list)
    """Exceptions that nobody expected."""
    directory: str = ""
    """Where the disks are; left out, as it differs from run to run."""

    def add(self, who: str, what: str) -> None:
        """Something happened now."""
        line = f"{trio.current_time():10.4f} {who:<10} {what}"
        self.lines.append(line.replace(self.directory, "") if self.directory else line)

    def logged(self, who: str, event: MutableMapping[str, Any]) -> None:
        """A process logged this."""
        name, level = event.pop("event", ""), event.pop("level", "")
        raised = event.pop("exc_info", None)
        details = " ".join(f"{key}={str(value)[:MAX_VALUE_CHARACTERS]}" for key, value in event.items())
        self.add(who, f"{level}: {name} {details}".rstrip())
        if raised:
            error = raised if isinstance(raised, BaseException) else sys.exception()
            if not isinstance(error, PipelineError):
                self.unexpected(who, name, error)

    def unexpected(self, who: str, where: str, error: BaseException | None) -> None:
        """An exception that shows a fault of the code."""
        text = "".join(traceback.format_exception(error)) if error is not None else ""
        self.add(who, f"UNEXPECTED {where}: {error!r}")
        self.faults_of_code.append(f"{who}: {where}: {text}")

    def digest(self) -> str:
        """Equal for equal runs."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()
