"""Interceptors of a producer: see each record when it is sent, acknowledged or given up (KIP-42).

Invariant: a faulty interceptor stops nothing. What it raises is logged, and the record goes on as it was.
"""

from collections.abc import Sequence

from pipeline.client.producer.batches import DeliveryCallback, RecordMetadata
from pipeline.client.producer.record import ProducerRecord
from pipeline.diagnostics import get_logger
from pipeline.errors import ConfigurationError

logger = get_logger(__name__)


class ProducerInterceptor:
    """Base of interceptors: override what is needed. No method may take long."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to send: this one, or another in its place. Called before it is encoded."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata) -> None:
        """Take note that a record was acknowledged."""

    def on_error(self, record: ProducerRecord, error: Exception) -> None:
        """Take note that a record was not delivered, or that its `send` raised. `record` is as `on_send` left it."""


class Interceptors:
    """The interceptors of a producer, in their order."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        """Raises ConfigurationError for an object that is no interceptor."""
        for one in interceptors:
            if not all(callable(getattr(one, name, None)) for name in ("on_send", "on_acknowledgement", "on_error")):
                raise ConfigurationError("interceptor.classes", f"{one!r} is no ProducerInterceptor")
        self._interceptors = tuple(interceptors)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return the record to send."""
        for one in self._interceptors:
            try:
                changed = one.on_send(record)
                if not isinstance(changed, ProducerRecord):
                    raise TypeError(f"on_send returned {type(changed).__name__} instead of a ProducerRecord")
                record = changed
            except Exception:
                logger.exception("interceptor_failed", method="on_send", topic=record.topic)
        return record

    def on_error(self, record: ProducerRecord, error: Exception) -> None:
        """Report a record that is not delivered."""
        for one in self._interceptors:
            try:
                one.on_error(record, error)
            except Exception:
                logger.exception("interceptor_failed", method="on_error", topic=record.topic)

    def callback(self, record: ProducerRecord, then: DeliveryCallback | None) -> DeliveryCallback:
        """Return the callback of a record that was accepted. The program's own comes last."""

        def report(metadata: RecordMetadata | None, error: Exception | None) -> None:
            if error is not None:
                self.on_error(record, error)
            elif metadata is not None:
                self._on_acknowledgement(metadata)
            if then is not None:
                then(metadata, error)

        return report

    def _on_acknowledgement(self, metadata: RecordMetadata) -> None:
        for one in self._interceptors:
            try:
                one.on_acknowledgement(metadata)
            except Exception:
                logger.exception(
                    "interceptor_failed", method="on_acknowledgement", topic=metadata.topic_partition.topic
                )
