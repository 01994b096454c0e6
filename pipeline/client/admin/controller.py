"""Requests to the controller that do not wait for a broker that is the controller no more."""

from contextlib import suppress
from typing import Any

import trio

from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.errors import NetworkError
from pipeline.net.nurseries import unwrapped_errors
from pipeline.protocol.schema import Message

LOOK_S = 2.0
"""Interval of checks whether another broker has become the controller."""


async def request_from_controller(cluster: Cluster, message: Message, *, timeout_s: float) -> Any:
    """Send as `Cluster.request_controller`. Raises NetworkError too if another broker becomes the controller meanwhile.

    A controller that hangs would use up the time in which its successor could answer.
    """
    controller = cluster.view.controller
    if controller is None:
        return await cluster.request_controller(message, timeout_s=timeout_s)
    response: Any = None
    is_over = False

    async def watch(scope: trio.CancelScope) -> None:
        while cluster.view.controller in {controller, None}:
            await trio.sleep(LOOK_S)
            with suppress(*UNREACHABLE):
                await cluster.refresh(timeout_s=timeout_s)
        scope.cancel()

    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            response = await cluster.request_controller(message, timeout_s=timeout_s)
            is_over = True
            nursery.cancel_scope.cancel()
    if not is_over:
        raise NetworkError(f"broker {controller} did not answer, and is the controller no more")
    return response
