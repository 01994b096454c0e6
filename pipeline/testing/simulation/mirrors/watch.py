"""Observations inside mirrors and at the brokers of the hub: claims of copiers, appends as they begin."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

from pipeline.broker.replication.partition import Partition
from pipeline.broker.requests import copied_batches
from pipeline.broker.requests.handlers import produce
from pipeline.mirror import shared_work
from pipeline.mirror.copying.kept_offsets import KeptOffsets
from pipeline.testing.simulation.broken_variant import replacing
from pipeline.testing.simulation.mirrors.mirror_group_rules import MirrorGroupRules
from pipeline.testing.simulation.mirrors.mirror_process import SimulatedMirror
from pipeline.testing.simulation.mirrors.pause_rules import PauseRules
from pipeline.testing.simulation.process import PROCESS


@contextmanager
def watched_mirrors(mirrors: Sequence[SimulatedMirror], group: MirrorGroupRules, pauses: PauseRules) -> Generator[None]:
    """Have the rules see each step for the length of the block. Members are named after their simulated hosts."""

    def seeing_checks(check: Any) -> Any:
        def checked(partition: Partition, epoch: int) -> None:
            group.checked(partition, epoch)
            check(partition, epoch)

        return checked

    def seeing_claims(claim: Any) -> Any:
        async def claimed(replicas: KeptOffsets, copy: Any, leader: Any) -> bool:
            is_claimed: bool = await claim(replicas, copy, leader)
            if is_claimed:
                group.claimed(copy.assignment.replica, copy.copier_epoch)
            return is_claimed

        return claimed

    def seeing_appends(append: Any) -> Any:
        async def appending(replicas: KeptOffsets, due: Any) -> Any:
            process = PROCESS.get()
            began_at = next((mirror.began_at for mirror in mirrors if mirror.process is process), None)
            if process is not None and process.is_alive and began_at is not None:
                for copy, _ in due:
                    pauses.append_begins(process, began_at, copy.assignment.source.cluster, copy.source)
            return await append(replicas, due)

        return appending

    def host_name() -> str:
        process = PROCESS.get()
        return "nowhere" if process is None else process.name

    with ExitStack() as stack:
        for module in (copied_batches, produce):
            stack.enter_context(replacing(module, "check_copier", seeing_checks)())
        stack.enter_context(replacing(KeptOffsets, "_claim", seeing_claims)())
        stack.enter_context(replacing(KeptOffsets, "append", seeing_appends)())
        stack.enter_context(replacing(shared_work, "socket", lambda _: SimpleNamespace(gethostname=host_name))())
        stack.enter_context(replacing(shared_work, "os", lambda _: SimpleNamespace(getpid=lambda: 1))())
        yield
