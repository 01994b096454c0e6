"""Counts of logins to an HTTP server that let nobody in, by what was shown: never by who showed it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class LoginMethod(StrEnum):
    """Kinds of logins, by what a client shows."""

    PASSWORD = "password"
    TOKEN = "token"
    CERTIFICATE = "certificate"
    OTHER = "other"
    """A scheme that is not served, or several headers."""
    NONE = "none"

    @classmethod
    def of_scheme(cls, scheme: bytes) -> "LoginMethod":
        """Return the method of the first word of a header."""
        return {b"basic": cls.PASSWORD, b"bearer": cls.TOKEN}.get(scheme.lower(), cls.OTHER)


@dataclass(slots=True, eq=False)
class LoginCounts(Collector):
    """Counts of a server, and their metrics. `service`: name of the service that the server belongs to."""

    service: str
    failed: Counter[LoginMethod] = field(default_factory=Counter)
    """Logins that showed something wrong."""
    refused: Counter[LoginMethod] = field(default_factory=Counter)
    """Requests that showed nothing, or whose login was not looked at, since too many of its address wait."""

    def collect(self) -> Iterator[Metric]:
        """Collect all methods, those without a failure too."""
        for name, counts, text in (
            ("failed", self.failed, "Logins to the HTTP server with a wrong password, token or certificate."),
            ("refused", self.refused, "Requests without a login, or whose address has too many attempts that wait."),
        ):
            family = CounterMetricFamily(f"pipeline_http_logins_{name}", text, labels=("service", "method"))
            for method in LoginMethod:
                family.add_metric((self.service, str(method)), counts[method])
            yield family
