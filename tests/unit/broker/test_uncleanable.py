"""Which partitions the cleaner has given up."""

import random
from types import SimpleNamespace

from pipeline.broker.log_cleaner import MAX_FAILURES, LogCleaner
from pipeline.model import TopicPartition

NAME = TopicPartition("compacted", 0)


def test_a_partition_that_was_given_up_is_tried_again_when_the_bound_of_its_batches_changes(tmp_path):
    partition = SimpleNamespace(
        settings=SimpleNamespace(max_message_bytes=1 << 20),
        log=SimpleNamespace(directory=tmp_path / "compacted-0", failure=None),
    )
    cleaner = LogCleaner(None, {NAME: partition}, None, None, lambda: 0, random.Random(1))

    def fail(times):
        for _ in range(times):
            cleaner._failed(NAME, partition.log, "holds too much")

    fail(MAX_FAILURES - 1)
    assert not cleaner.uncleanable
    fail(1)
    assert cleaner.uncleanable == {NAME: tmp_path}

    partition.settings.max_message_bytes = 2 << 20
    assert cleaner.uncleanable == {NAME: tmp_path}, "batches may hold no more than before"
    partition.settings.max_message_bytes = 8 << 20
    assert not cleaner.uncleanable
    fail(MAX_FAILURES - 1)
    assert not cleaner.uncleanable
    fail(1)
    assert cleaner.uncleanable == {NAME: tmp_path}
