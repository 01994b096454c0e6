"""The number from which all brokers of a cluster make what unknown users are shown in SCRAM.

With a number of its own each broker would show another salt for the same name, and another one after a restart, while
the salt of a known user stays: a stranger could tell who exists.
"""

import random

from pipeline.coordination.interface import CoordinationClient
from pipeline.coordination.scram_znodes import SCRAM_SECRET, SECRET_BYTES, decode_secret, encode_secret
from pipeline.errors import CoordinationLostError, NodeExistsError


async def find_scram_secret(zookeeper: CoordinationClient, rng: random.Random) -> bytes:
    """Return the number, which the first broker makes. Raises CoordinationError."""
    while True:
        found = await zookeeper.get_or_none(SCRAM_SECRET)
        if found is not None:
            return decode_secret(found.data)
        try:
            await zookeeper.create(SCRAM_SECRET, encode_secret(rng.randbytes(SECRET_BYTES)))
        except (NodeExistsError, CoordinationLostError):
            continue
