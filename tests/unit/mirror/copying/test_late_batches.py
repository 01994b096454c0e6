"""Batches that were fetched before their partition was located again, and are appended or dropped after that."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

from pipeline.client.consumer.fetch_plan import FetchedBatches
from pipeline.mirror.copying.copier import SourceCopier
from pipeline.mirror.copying.copies import PartitionCopy
from tests.support.mirrors import CLICKS, Site, make, publish, until_copied


async def test_a_partition_that_was_located_between_fetch_and_append_is_copied_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_epochs, is_located = SourceCopier._record_epochs, trio.Event()

    async def locate_before(
        copier: SourceCopier, consumer: Any, found: Sequence[tuple[PartitionCopy, FetchedBatches]]
    ) -> None:
        if not is_located.is_set():
            for copy, _ in found:
                copier.copies.locate_again(copy)
                await trio.testing.wait_all_tasks_blocked()
                assert copy.position is None  # the replica's end is not certain before the append has ended
            is_located.set()
        await record_epochs(copier, consumer, found)

    monkeypatch.setattr(SourceCopier, "_record_epochs", locate_before)
    await make(site.east)
    await publish(site.east, b"a", b"b")
    async with site.mirroring():
        await is_located.wait()
        await until_copied(site.hub, CLICKS, b"a", b"b")
        await publish(site.east, b"c")
        await until_copied(site.hub, CLICKS, b"a", b"b", b"c")
