"""Diagnostics: events with fields, as modules log them.

Invariant: a program that uses the library finds none of them on its stdout, unless it configured structlog so. In a
process that configured structlog, as the commands do, events go there. Elsewhere they go through Python's `logging`,
under the name of their module: warnings and errors appear on stderr, until the program configures `logging`.
"""

import logging
from typing import Any

import structlog

_TO_CALLER = 3
"""Calls between a module's line and `logging`."""


class DiagnosticLogger:
    """Logger of a module. Asks with each event how the process is configured."""

    __slots__ = ("_standard",)

    def __init__(self, name: str) -> None:
        self._standard = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        """Log what helps to find a fault of the code."""
        self._log(logging.DEBUG, "debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log an ordinary change."""
        self._log(logging.INFO, "info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log a failure that is dealt with."""
        self._log(logging.WARNING, "warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log a failure that needs somebody's attention."""
        self._log(logging.ERROR, "error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, "exception", event, {"exc_info": True, **fields})

    def _log(self, level: int, method: str, event: str, fields: dict[str, Any]) -> None:
        if structlog.is_configured():
            getattr(structlog.get_logger(), method)(event, **fields)  # no logger of an earlier configuration
        elif self._standard.isEnabledFor(level):
            exc_info = fields.pop("exc_info", None)
            line = " ".join((event, *(f"{name}={value!r}" for name, value in fields.items())))
            self._standard.log(level, line, exc_info=exc_info, stacklevel=_TO_CALLER)


class OwnLevelLogger:
    """Logger whose events the level of the process does not hold back. Each event bears the logger's name.

    Its owner decides what is logged. Through Python's `logging` the level of the logger of this name decides, too.
    """

    __slots__ = ("_name", "_standard")

    def __init__(self, name: str) -> None:
        self._name = name
        self._standard = logging.getLogger(name)

    def debug(self, event: str, **fields: Any) -> None:
        """Log what is of interest at times."""
        self._log(logging.DEBUG, "debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log what is of interest always."""
        self._log(logging.INFO, "info", event, fields)

    def _log(self, level: int, method: str, event: str, fields: dict[str, Any]) -> None:
        if structlog.is_configured():
            factory = structlog.get_config()["logger_factory"]
            wrapper = structlog.make_filtering_bound_logger(logging.DEBUG)
            getattr(structlog.wrap_logger(factory(), wrapper_class=wrapper), method)(event, logger=self._name, **fields)
        elif self._standard.isEnabledFor(level):
            line = " ".join((event, *(f"{name}={value!r}" for name, value in fields.items())))
            self._standard.log(level, line, stacklevel=_TO_CALLER)


def get_logger(name: str) -> DiagnosticLogger:
    """Return the logger of the module of this name."""
    return DiagnosticLogger(name)
