"""A registry over a journal: reads are answered from its state, writes are decided and appended by `LogWriter`.

Without the journal, reads are answered from memory, and so is the registration of a registered schema. Writes fail
within their time. Both recover by themselves.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio
from prometheus_client import CollectorRegistry

from pipeline.client.cluster.background import background_tasks
from pipeline.schema_registry.errors import Code, RegistryError
from pipeline.schema_registry.rules.candidates import Candidate, SchemaComparison
from pipeline.schema_registry.rules.deletions import delete_subject, left_to_remove, remove_versions
from pipeline.schema_registry.rules.registry import AnswerT, WritePlan, register
from pipeline.schema_registry.state.contexts import context_of
from pipeline.schema_registry.state.state import RegistryState
from pipeline.schema_registry.state.stored import Version
from pipeline.schema_registry.work.schema_work import SchemaWork
from pipeline.schema_registry.writing.id_guard import IdGuard
from pipeline.schema_registry.writing.journal import SchemaJournal
from pipeline.schema_registry.writing.log_follower import LogFollower
from pipeline.schema_registry.writing.log_writer import LogWriter


class RegistryService:
    """A registry over a journal. `state` is read by callers, and changed through `write`."""

    def __init__(
        self,
        journal: SchemaJournal,
        guard: SchemaJournal | None,
        state: RegistryState,
        *,
        name: str,
        write_timeout_s: float,
        metrics: CollectorRegistry,
    ) -> None:
        """`guard`: the log of the ids that were given out; without it this registry never is the writer.

        `name`: of this process alone, in letters and digits.
        """
        self.state = state
        self.work = SchemaWork()
        self.follower = LogFollower(journal, state, self.work.events, metrics=metrics)
        self.guard = None if guard is None else IdGuard(guard)
        self.writer = LogWriter(
            journal,
            self.follower,
            self.guard,
            name=name,
            write_timeout_s=write_timeout_s,
            metrics=metrics,
        )
        self._write_timeout_s = write_timeout_s

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the log and carry out writes until cancelled. Reports started, and raises, as `LogFollower.run`."""
        async with background_tasks() as nursery:
            await nursery.start(self.follower.run)
            self.state.names.in_order()  # sorted for the first time before others wait for it
            nursery.start_soon(self.writer.run)
            nursery.start_soon(self.writer.keep_ids)
            task_status.started()
            await trio.sleep_forever()

    async def register(self, subject: str, candidate: Candidate) -> Version:
        """Register a schema and return its version. Raises as `registry.register` and `write`.

        While others register in the subject, it is compared with their versions again.
        """
        judged: dict[SchemaComparison, list[str]] = {}

        def decide(state: RegistryState) -> WritePlan[Version | SchemaComparison]:
            return register(state, subject, candidate, judged)

        answer = _answer_without_events(decide, self.state)
        if isinstance(answer, Version) and await self.writer.has_kept(context_of(answer.subject), answer.schema.id):
            return answer
        self.writer.require_writer()
        deadline = trio.current_time() + self._write_timeout_s
        while trio.current_time() < deadline:
            if isinstance(answer, SchemaComparison):
                judged[answer] = await self.work.judge(candidate, answer)
            answer = await self.writer.write(decide, candidate.identity)
            if not isinstance(answer, SchemaComparison):
                return answer
        reason = f"Others registered schemas for subject '{subject}' meanwhile, several times. Try again."
        raise RegistryError(Code.STORE_TIMED_OUT, reason)

    async def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        """Delete a subject and return the numbers of its versions. Raises as `deletions.delete_subject` and `write`.

        Many versions are removed by several writes. If one fails, the command can be repeated.
        """
        numbers = await self.write(lambda state: delete_subject(state, subject, permanent=permanent))
        for part in left_to_remove(numbers) if permanent else ():
            await self.write(partial(remove_versions, subject=subject, numbers=part))
        return numbers

    async def write(self, decide: Callable[[RegistryState], WritePlan[AnswerT]]) -> AnswerT:
        """Carry out the plan of `decide`, and return its answer. Raises as `LogWriter.write`."""
        return await self.writer.write(decide)


def _answer_without_events(
    decide: Callable[[RegistryState], WritePlan[AnswerT]], state: RegistryState
) -> AnswerT | None:
    """Return what the state answers. It may be old: a refusal counts only if the writer repeats it."""
    with suppress(RegistryError):
        plan = decide(state)
        return None if plan.events else plan.answer
    return None
