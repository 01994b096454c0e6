"""Znodes, as an operator treats them."""

from contextlib import suppress

import trio

from pipeline.coordination.interface import CoordinationClient
from pipeline.errors import NoNodeError, NotEmptyError

TIMEOUT_S = 60.0


async def remove_tree(client: CoordinationClient, path: str) -> None:
    """Remove a znode with all below it, as `deleteall` of zkCli, also with what brokers write meanwhile."""
    with trio.fail_after(TIMEOUT_S):
        while True:
            try:
                children = await client.children(path)
            except NoNodeError:
                return
            for child in children:
                await remove_tree(client, f"{path.rstrip('/')}/{child}")
            if path == "/":
                return
            with suppress(NotEmptyError):
                with suppress(NoNodeError):
                    await client.delete(path)
                return
