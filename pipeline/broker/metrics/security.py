"""Metrics of who was let in, and of what was refused, named as by Kafka's JMX exporter."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline.broker.security.authentication import AuthenticationCounts
from pipeline.broker.security.decisions import AuthorizerLog
from pipeline.coordination.acl_znodes import camel_case
from pipeline.net.security.tls_context import ReloadingContext

_CONNECTIONS = "kafka_server_socket_server_metrics"
_LISTENER = ("listener",)


def collect_authorizations(log: AuthorizerLog) -> Iterator[Metric]:
    """Count the resources for which requests were refused, by operation and type of resource."""
    denied = CounterMetricFamily(
        "kafka_server_authorizer_metrics_authorization_denied",
        "Resources that a request was refused, by its operation.",
        labels=("operation", "resource_type"),
    )
    for (operation, resource_type), count in sorted(log.denied.items()):
        denied.add_metric((camel_case(operation), camel_case(resource_type)), count)
    yield denied


def collect_authentications(counts: AuthenticationCounts) -> Iterator[Metric]:
    """Count authentications by listener."""
    for name, counted, text in (
        ("successful_authentication", counts.successes, "Clients that were let in by SASL or TLS."),
        ("failed_authentication", counts.failures, "Clients that failed to prove who they are."),
        ("successful_reauthentication", counts.renewals, "Clients that logged in again in time."),
        ("expired_connections_killed", counts.expired, "Connections that were closed because their login had ended."),
    ):
        family = CounterMetricFamily(f"{_CONNECTIONS}_{name}", text, labels=_LISTENER)
        for listener, count in sorted(counted.items()):
            family.add_metric((listener,), count)
        yield family


def collect_certificates(contexts: Mapping[str, ReloadingContext]) -> Iterator[Metric]:
    """Certificates by listener: changes that could not be used, and when the one in force expires."""
    reloads = CounterMetricFamily(
        "pipeline_certificate_reload_failures", "Changed certificates that could not be used.", labels=_LISTENER
    )
    ends = GaugeMetricFamily(
        "pipeline_certificate_expiration_timestamp_seconds",
        "Time at which the certificate of a listener expires, in seconds since 1970.",
        labels=_LISTENER,
    )
    for listener, context in sorted(contexts.items()):
        reloads.add_metric((listener,), context.failures)
        ends.add_metric((listener,), context.end_s)
    yield from (reloads, ends)
