"""The gate that batches of producers pass before they are appended: contracts of topics, as far as the topics have any.

Invariants:
- A batch whose ids are all known passes without a wait: small ones at once, others in a thread.
- The event loop opens and reads at most PLAIN_BYTES_OF_A_MS for all requests that came in one millisecond.
- A batch is refused as a whole, with INVALID_RECORD and the first MAX_RECORDS_NAMED of its invalid records (KIP-467).
- Brokers without `confluent.schema.registry.url` load no heavy module, and let no batch of such a topic pass.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from pipeline.broker.contract.verdicts import (
    CompileSchema,
    ContractVerdict,
    RefusalReason,
    SchemaQuestion,
    VerdictCache,
)
from pipeline.broker.runtime.scan_threads import ScanThreads
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.contract import Contract
from pipeline.errors import InvalidRecordError
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import HEADER_SIZE, BatchHeader
from pipeline.records.compression import Codec
from pipeline.records.memory import max_opened_bytes
from pipeline.records.opening import UNCHARGED_BYTES, open_uncharged

if TYPE_CHECKING:
    from pipeline.broker.contract.checking import Findings, SideRule
    from pipeline.broker.contract.lookups import SchemaLookups
    from pipeline.broker.contract.registry import RegistryQuestions

PLAIN_BYTES_OF_A_MS = 1 << 20
MAX_TOPICS_KEPT = 1000
"""Topics whose rules are not made anew for each batch."""


class ContractGate:
    """Checks batches against contracts; counts, which metrics read: refused records by topic and reason, known ids."""

    def __init__(self, config: BrokerConfig, compile_schema: CompileSchema | None) -> None:
        self._urls = config.schema_registry_urls
        self._timeout_s = config.schema_registry_timeout_ms / 1000
        self._compile = compile_schema
        self.cache = VerdictCache(
            config.schema_registry_max_cache_size,
            fresh_s=config.schema_registry_cache_ttl_sec,
            refused_s=config.missing_id_cache_ttl_sec,
        )
        self._lookups: SchemaLookups | None = None
        self._questions: RegistryQuestions | None = None
        self.refused: Counter[tuple[str, RefusalReason]] = Counter()
        self.hits = 0
        self._look: Callable[..., Findings] | None = None
        self._sides: dict[tuple[str, Contract], Sequence[SideRule]] = {}
        self._budget_ms = 0
        self._budget_bytes = 0

    @property
    def calls(self) -> Mapping[str, int]:
        """HTTP requests to registries by outcome."""
        return {} if self._questions is None else self._questions.calls

    @property
    def waiting(self) -> int:
        """Produce requests that wait for a registry."""
        return 0 if self._lookups is None else self._lookups.waiting

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load what checks need, and hold the lookups, until cancelled. Without registries there is nothing to do."""
        if not self._urls:
            task_status.started()
            return
        await trio.to_thread.run_sync(self._load)
        from pipeline.broker.contract.lookups import SchemaLookups
        from pipeline.broker.contract.registry import open_questions

        async with open_questions(
            self._urls, timeout_s=self._timeout_s, compile_schema=self._compile
        ) as self._questions:
            self._lookups = SchemaLookups(self.cache, self._questions.judge, self._timeout_s)
            await self._lookups.run(task_status=task_status)

    def _load(self) -> None:
        """Import the heavy modules, and have the kernels compiled, or read from their cache."""
        import pipeline.broker.contract.lookups  # noqa: F401
        from pipeline.broker.contract.checking import look_at
        from pipeline.broker.contract.frames import READ_IN_LOOP, FrameReader
        from pipeline.records.batch import read_header
        from pipeline.records.builder import BatchBuilder

        builder = BatchBuilder(Codec.NONE, 1024)
        builder.append(None, b"\0\0\0\0\1", (), 0)
        batch = builder.build()
        for reader in (FrameReader(), FrameReader(READ_IN_LOOP)):
            for _ in reader.chunks(batch[HEADER_SIZE:], read_header(batch), 2):
                pass
        self._look = partial(look_at, peek=self.cache.peek, reader=reader)

    def admits(
        self, contract: Contract, topic: str, records: memoryview, headers: Sequence[BatchHeader], now_ms: int
    ) -> bool:
        """True if the batches meet the contract; False if only `check` can tell. Raises InvalidRecordError."""
        look = self._look
        if look is None:
            return False
        sides = self._sides_of(contract, topic)
        if any(side.decodes for side in sides):
            return False
        if now_ms != self._budget_ms:
            self._budget_ms, self._budget_bytes = now_ms, PLAIN_BYTES_OF_A_MS
        position = 0
        for header in headers:
            payload = self._open_now(records, position, header)
            if payload is None:
                return False
            position += header.size_bytes
            findings = look(payload, header, sides)
            if findings.missing:
                return False
            self._judge(topic, findings)
        return True

    def _open_now(self, records: memoryview, position: int, header: BatchHeader) -> memoryview | bytes | None:
        """Return the payload of a batch, None if it is too large for the event loop now. Raises CorruptBatchError."""
        end = position + header.size_bytes
        size_bytes = header.size_bytes - HEADER_SIZE if header.codec is Codec.NONE else UNCHARGED_BYTES
        if size_bytes > self._budget_bytes:
            return None
        if header.codec is Codec.NONE:
            payload: memoryview | bytes | None = records[position + HEADER_SIZE : end]
        else:
            payload = open_uncharged(records, position, header, UNCHARGED_BYTES)
        self._budget_bytes -= size_bytes if payload is None else len(payload)
        return payload

    async def check(
        self,
        contract: Contract,
        topic: str,
        records: memoryview,
        headers: Sequence[BatchHeader],
        *,
        max_batch_bytes: int,
        threads: ScanThreads,
    ) -> None:
        """Return if the batches meet the contract; wait for threads, memory and the registry as far as needed.

        Raises InvalidRecordError, CorruptBatchError, OpenedBatchTooLargeError, MemoryExhaustedError, and KafkaError
        (REQUEST_TIMED_OUT) if the registry does not answer.
        """
        lookups = self._lookups
        if lookups is None:
            reason = "Topic settings want schema ids checked, and confluent.schema.registry.url is not set here."
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, reason)
        from pipeline.broker.contract.checking import check_batch

        sides = self._sides_of(contract, topic)
        answers: dict[SchemaQuestion, ContractVerdict] = {}

        def peek(question: SchemaQuestion) -> ContractVerdict | None:
            return answers.get(question) or self.cache.peek(question)

        position = 0
        deadline = trio.current_time() + self._timeout_s
        for header in headers:
            batch = records[position : position + header.size_bytes]
            position += header.size_bytes
            while True:
                steps = check_batch(batch, header, sides, peek, max_opened_bytes(max_batch_bytes))
                findings = await threads.run(steps)
                if not findings.missing or (findings.faults and answers):  # a refusal needs no more answers
                    self._judge(topic, findings)
                    break
                try:
                    answers.update(await lookups.settle(findings.missing, len(records), deadline))
                except KafkaError:
                    self._judge(topic, findings)  # a batch with other faults is refused for these
                    raise

    def _sides_of(self, contract: Contract, topic: str) -> "Sequence[SideRule]":
        sides = self._sides.get((topic, contract))
        if sides is None:
            from pipeline.broker.contract.checking import SideRule
            from pipeline.records.frame_kernels import KEY, VALUE

            demands = ((KEY, "key", contract.key), (VALUE, "value", contract.value))
            sides = [
                SideRule(side, name, demand.rule(topic, name), demand.decodes)
                for side, name, demand in demands
                if demand is not None
            ]
            if len(self._sides) >= MAX_TOPICS_KEPT:
                self._sides.clear()
            self._sides[topic, contract] = sides
        return sides

    def _judge(self, topic: str, findings: "Findings") -> None:
        """Count, and raise InvalidRecordError if there are invalid records."""
        self.hits += findings.hits
        if not findings.faults:
            return
        for reason, count in findings.refused.items():
            self.refused[topic, reason] += count
        least = "at least " if findings.is_enough else ""
        total = findings.refused.total()
        message = f"{least}{total} records break the contract of {topic}: {min(findings.faults)[1]}"
        raise InvalidRecordError(message, 0, sorted(findings.faults))
