"""Metrics of loads, by topic: served by a resident load, or written to a file by single runs.

Invariant: a file that a run writes holds what all runs before it counted, so that a counter never falls while the file
stays, and the time of the last success survives runs that fail.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, write_to_textfile
from prometheus_client.parser import text_string_to_metric_families

from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.hadoop.load.many import TopicResult

logger = get_logger(__name__)

_PREFIX: Final = "pipeline_load_"
_TOPIC: Final = ("topic",)
_LOAD: Final = "load"


class LoadMetrics:
    """Metrics of the loads of a process, by topic."""

    def __init__(self, registry: CollectorRegistry, load: str | None = None) -> None:
        """`load`: a label of all metrics, for loads that do not serve their metrics at addresses of their own."""
        self._load = {} if load is None else {_LOAD: load}
        self._kept: dict[str, Counter | Gauge] = {}
        """Metrics by the names of their series."""

        def counter(name: str, text: str, labels: Sequence[str] = _TOPIC) -> Counter:
            made = Counter(_PREFIX + name, text, (*self._load, *labels), registry=registry)
            self._kept[f"{_PREFIX}{name}_total"] = made
            return made

        def gauge(name: str, text: str, labels: Sequence[str] = _TOPIC) -> Gauge:
            made = Gauge(_PREFIX + name, text, (*self._load, *labels), registry=registry)
            self._kept[_PREFIX + name] = made
            return made

        self._records = counter("records", "Records in data files that were committed.")
        self._quarantined = counter("quarantined_records", "Records in quarantine files that were committed.")
        self._lost = counter("lost_records", "Offsets that loads skipped, because their records are lost.")
        self._commits = counter("commits", "Commits of loads: each adds files to the table of the topic.")
        self._failures = counter("failures", "Loads that failed, with those of which another run committed first.")
        self._lag = gauge("lag_records", "Records known at the last plan that are not loaded.")
        self._seconds = gauge("duration_seconds", "Seconds that the last load took.")
        self._success = gauge("last_success_timestamp_seconds", "Time of the last load without an error.")
        rounds = counter("failed_rounds", "Rounds that loaded no topic, for a common reason.", ())
        self._failed_rounds = rounds.labels(**self._load) if self._load else rounds

    def note(self, outcome: TopicResult, now_ms: int) -> None:
        """Take the result of a topic."""
        labels, result = self._load | {_TOPIC[0]: outcome.topic}, outcome.result
        failures = self._failures.labels(**labels)
        self._seconds.labels(**labels).set(outcome.seconds)
        if outcome.lag is not None:
            self._lag.labels(**labels).set(outcome.lag)
        if outcome.error is not None:
            failures.inc()
        else:
            self._success.labels(**labels).set(now_ms / 1000)
        commits = self._commits.labels(**labels)
        records = self._records.labels(**labels)
        if result is not None and result.committed:
            commits.inc()
            records.inc(result.records)
            self._quarantined.labels(**labels).inc(result.quarantined)
            self._lost.labels(**labels).inc(result.lost)

    def note_failed_round(self) -> None:
        """Count a round that loaded nothing."""
        self._failed_rounds.inc()

    def continue_from(self, text: str) -> None:
        """Take over what earlier runs wrote. Raises ValueError if `text` is not what a load writes."""
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                metric = self._kept.get(sample.name)
                if metric is not None:
                    labels = sample.labels | self._load
                    (metric.labels(**labels) if labels else metric).inc(sample.value)


def write_metrics(path: Path, results: Sequence[TopicResult] | None, now_ms: int) -> None:
    """Replace a file of metrics by one that has the results of a run, too; None: the run loaded nothing.

    Node exporter's textfile collector reads such files. It shows one of several series with the same labels, so the
    file's name is a label. Raises PipelineError if the file cannot be written.
    """
    registry = CollectorRegistry()
    metrics = LoadMetrics(registry, path.stem)
    try:
        metrics.continue_from(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        logger.warning("metrics_begin_anew", file=str(path), reason=str(error))
        registry = CollectorRegistry()
        metrics = LoadMetrics(registry, path.stem)
    for outcome in results or ():
        metrics.note(outcome, now_ms)
    if results is None:
        metrics.note_failed_round()
    try:
        write_to_textfile(str(path), registry)
        path.chmod(0o644)  # node exporter is another user
    except OSError as error:
        raise PipelineError(f"metrics cannot be written to {path}: {error.strerror or error}") from error
