"""The way of a table through a producer: validated and encoded in threads, accepted piece by piece.

Invariant: a piece is accepted as a whole, without a checkpoint between its batches, once there is memory for all of it.
"""

import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING

import trio

from pipeline.client.cluster.config import ProducerConfig
from pipeline.client.producer.accumulator import Accumulator
from pipeline.client.producer.partitioner import next_sticky_partition
from pipeline.client.producer.routes import TopicRoute
from pipeline.client.producer.sender import Sender, now_ms
from pipeline.errors import DeadlineExceededError, PipelineError
from pipeline.model import Clock
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.records.batch import HEADER_SIZE

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.client.producer.columns import ColumnsDelivery, TablePiece

_COLUMNS_MODULE = "pipeline.client.producer.columns"


class ColumnSender:
    """Sends tables into the accumulator of a producer.

    `find` and `find_grown` return the partitions of a topic, the latter with a partition that was not there before.
    `take_turn` waits until the accumulator has room for as many bytes, behind all that wait already.
    """

    def __init__(
        self,
        config: ProducerConfig,
        accumulator: Accumulator,
        sender: Sender,
        clock: Clock,
        rng: Random,
        max_charge: int,
        *,
        find: Callable[[str], Awaitable[TopicRoute]],
        find_grown: Callable[[str, int], Awaitable[TopicRoute]],
        take_turn: Callable[[str, int], Awaitable[None]],
    ) -> None:
        self._config = config
        self._accumulator = accumulator
        self._sender = sender
        self._clock = clock
        self._rng = rng
        self._max_charge = max_charge
        self._find = find
        self._find_grown = find_grown
        self._take_turn = take_turn

    async def send(self, topic: str, table: "pa.Table | pa.RecordBatch") -> "ColumnsDelivery":
        """See `Producer.send_columns`."""
        if _COLUMNS_MODULE not in sys.modules:  # numba and pyarrow take long to load
            await trio.to_thread.run_sync(import_module, _COLUMNS_MODULE)
        from pipeline.client.producer.columns import ColumnsDelivery, ColumnsNotAcceptedError, pieces_of

        await self._find(topic)
        pieces = await trio.to_thread.run_sync(pieces_of, table, self._config, self._clock(), self._max_charge)
        delivery = ColumnsDelivery(table.num_rows)
        greatest = max((piece.greatest_named for piece in pieces), default=-1)
        if greatest >= len((await self._find(topic)).partitions):
            await self._find_grown(topic, greatest)
        for piece in pieces:
            try:
                await self._send_piece(topic, piece, delivery)
            except PipelineError as error:
                if delivery.accepted_rows or isinstance(error, DeadlineExceededError):
                    raise ColumnsNotAcceptedError(delivery, str(error)) from error
                raise
        return delivery

    async def _send_piece(self, topic: str, piece: "TablePiece", delivery: "ColumnsDelivery") -> None:
        """Encode rows, wait until there is memory for all of them, and accept them."""
        from pipeline.client.producer.columns import build_piece, sticky_count

        route = await self._find(topic)
        partitions = route.partitions
        if piece.greatest_named >= len(partitions):  # the topic was recreated meanwhile
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{piece.greatest_named}")
        sticky: list[int] = []
        for _ in range(sticky_count(piece, self._config)):
            last = sticky[-1] if sticky else route.sticky_partition
            sticky.append(next_sticky_partition(route.candidates, last, self._rng))
        built = await trio.to_thread.run_sync(
            build_piece, piece, self._config, len(partitions), sticky, self._max_charge
        )
        await self._take_turn(topic, sum(batch.charge for batch in built) - HEADER_SIZE)
        for batch in built:
            accepted = self._accumulator.append_built(
                partitions[batch.partition], batch.data, len(batch.rows), batch.charge, batch.timestamp_ms, now_ms()
            )
            delivery.add(batch.rows, accepted)
        delivery.accepted_rows += piece.rows.num_rows
        self._sender.wake()
