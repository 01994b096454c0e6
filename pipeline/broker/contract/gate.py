"""The gate that batches of producers pass before they are appended: contracts of topics, as far as the topics have any.

Invariants:
- A batch whose ids are all known passes without a wait: small ones at once, others in a thread.
- The event loop checks batches of up to PLAIN_BYTES_NOW, and for all requests of one millisecond no longer than
  LOOP_TIME_S and a last batch.
- A batch is refused as a whole, with INVALID_RECORD and the first MAX_RECORDS_NAMED of its invalid records (KIP-467).
- Brokers without `confluent.schema.registry.url` load no heavy module, and let no batch of such a topic pass.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from pipeline.broker.contract.verdicts import (
    CompileSchema,
    ContractVerdict,
    Patience,
    RefusalReason,
    SchemaQuestion,
    VerdictCache,
)
from pipeline.broker.runtime.scan_threads import ScanThreads
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.settings.contract import Contract
from pipeline.errors import InvalidRecordError, OpenedBatchTooLargeError
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import HEADER_SIZE, BatchHeader
from pipeline.records.compression import Codec, ReadableBuffer, decompress

if TYPE_CHECKING:
    from pipeline.broker.contract.checking import ContractPlan, Findings, LoopChecks
    from pipeline.broker.contract.lookups import SchemaLookups
    from pipeline.broker.contract.registry import RegistryQuestions

PLAIN_BYTES_NOW = 1 << 20
GZIP_BYTES_NOW = 256 << 10
"""Less, since gzip takes several times as long."""
LOOP_TIME_S = 0.001
MAX_TOPICS_KEPT = 1000
"""Topics whose plans are not made anew for each batch."""


class BatchesToCheck(NamedTuple):
    """Batches for a topic with a contract, each of which may hold so many bytes when it is opened."""

    contract: Contract
    topic: str
    records: memoryview
    headers: Sequence[BatchHeader]
    max_opened_bytes: int


class ContractGate:
    """Checks batches against contracts; counts, which metrics read: refused records by topic and reason, known ids."""

    def __init__(self, config: BrokerConfig, compile_schema: CompileSchema | None) -> None:
        self._urls = config.schema_registry_urls
        self._login = config.schema_registry_login
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
        self._now: LoopChecks | None = None
        self._plans: dict[str, ContractPlan] = {}
        self._spent_ms = 0
        self._spent_s = 0.0

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
            self._urls, timeout_s=self._timeout_s, compile_schema=self._compile, login=self._login
        ) as self._questions:
            self._lookups = SchemaLookups(self.cache, self._questions.judge, self._timeout_s)
            await self._lookups.run(task_status=task_status)

    def _load(self) -> None:
        """Import the heavy modules, and have the kernels compiled, or read from their cache."""
        import pipeline.broker.contract.lookups  # noqa: F401
        from pipeline.broker.contract.checking import LoopChecks

        self._now = LoopChecks(self.cache)

    def admits(
        self, contract: Contract, topic: str, records: memoryview, headers: Sequence[BatchHeader], now_ms: int
    ) -> bool:
        """True if the batches meet the contract; False if only `check` can tell. Raises InvalidRecordError."""
        checks = self._now
        if checks is None:
            return False
        plan = self._plan_of(contract, topic)
        if plan.decodes:
            return False
        if now_ms != self._spent_ms:
            self._spent_ms, self._spent_s = now_ms, 0.0
        elif self._spent_s > LOOP_TIME_S:
            return False
        begun_s = time.perf_counter()
        try:
            return self._admits_by(begun_s + LOOP_TIME_S, checks, plan, records, headers)
        finally:
            self._spent_s += time.perf_counter() - begun_s

    def _admits_by(
        self,
        until_s: float,
        checks: "LoopChecks",
        plan: "ContractPlan",
        records: memoryview,
        headers: Sequence[BatchHeader],
    ) -> bool:
        position = 0
        for header in headers:
            if position and time.perf_counter() > until_s:
                return False
            payload = _open_now(records, position, header)
            if payload is None:
                return False
            position += header.size_bytes
            if checks.has_known_ids(payload, header, plan):
                self.hits += 1
                continue
            findings = checks.look_at(payload, header, plan)
            if findings is None or findings.missing:
                return False
            self._judge(plan.topic, findings)
        return True

    def patience(self, held_bytes: int) -> Patience:
        """Return the patience of a request that begins to wait now, and that holds so many bytes meanwhile."""
        return Patience(trio.current_time() + self._timeout_s, held_bytes)

    async def check(self, batches: BatchesToCheck, threads: ScanThreads, patience: Patience) -> None:
        """Return if the batches meet the contract; wait for threads, memory and the registry as far as needed.

        Raises InvalidRecordError, CorruptBatchError, OpenedBatchTooLargeError, MemoryExhaustedError, and KafkaError
        (REQUEST_TIMED_OUT) if the registry does not answer in time.
        """
        lookups = self._lookups
        if lookups is None:
            reason = "Topic settings want schema ids checked, and confluent.schema.registry.url is not set here."
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, reason)
        from pipeline.broker.contract.checking import check_batch

        plan = self._plan_of(batches.contract, batches.topic)
        answers: dict[SchemaQuestion, ContractVerdict] = {}

        def peek(question: SchemaQuestion) -> ContractVerdict | None:
            return answers.get(question) or self.cache.peek(question)

        position = 0
        for header in batches.headers:
            batch = batches.records[position : position + header.size_bytes]
            position += header.size_bytes
            while True:
                findings = await threads.run(check_batch(batch, header, plan, peek, batches.max_opened_bytes))
                if not findings.missing or (findings.faults and answers):  # a refusal needs no more answers
                    self._judge(batches.topic, findings)
                    break
                try:
                    answers.update(await lookups.settle(findings.missing, patience))
                except KafkaError:
                    self._judge(batches.topic, findings)  # a batch with other faults is refused for these
                    raise

    def _plan_of(self, contract: Contract, topic: str) -> "ContractPlan":
        plan = self._plans.get(topic)
        if plan is None or (plan.contract is not contract and plan.contract != contract):
            from pipeline.broker.contract.checking import ContractPlan

            if len(self._plans) >= MAX_TOPICS_KEPT:
                self._plans.clear()
            plan = self._plans[topic] = ContractPlan.of(contract, topic)
        return plan

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


def _open_now(records: memoryview, position: int, header: BatchHeader) -> ReadableBuffer | None:
    """Return the payload of a batch, None if it is too large for the event loop. Raises CorruptBatchError."""
    section, codec = records[position + HEADER_SIZE : position + header.size_bytes], header.codec
    limit_bytes = GZIP_BYTES_NOW if codec is Codec.GZIP else PLAIN_BYTES_NOW
    if len(section) > limit_bytes:
        return None
    try:
        return decompress(codec, section, limit_bytes)
    except OpenedBatchTooLargeError:
        return None
