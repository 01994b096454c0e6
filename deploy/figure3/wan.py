"""`python -m deploy.figure3.wan`: the long way between two routers, as a process of the first one.

Carries packets between two TUN devices, each 40 ms late, since not every kernel has netem. TCP at both ends is the
kernel's. The way is gone when this process is.
"""

import argparse

from deploy.figure3.networks import PREFIX, run
from tests.support.cluster.wan import DEVICE_QUEUE, MTU, Direction, Way, new_device, relay


def main() -> None:
    """Relay until the process is ended."""
    options = argparse.ArgumentParser()
    for name in ("here", "there", "subnet_here", "subnet_there"):
        options.add_argument(name)
    options.add_argument("--delay-ms", type=float, required=True)
    options.add_argument("--mbit", type=float, required=True)
    given = options.parse_args()
    bytes_per_s = given.mbit * 1e6 / 8
    way = Way(bytes_per_s=bytes_per_s, delay_s=given.delay_ms / 1000, loss=0.0, queue_bytes=int(bytes_per_s))
    devices = [new_device(f"wan-{given.there}"), new_device(f"wan-{given.here}")]
    run("ip", "link", "set", f"wan-{given.here}", "netns", f"{PREFIX}{given.there}")
    for router, device, subnet in (
        (given.here, f"wan-{given.there}", given.subnet_there),
        (given.there, f"wan-{given.here}", given.subnet_here),
    ):
        ip = ("ip", "-n", f"{PREFIX}{router}")
        run(*ip, "link", "set", device, "mtu", str(MTU), "txqueuelen", str(DEVICE_QUEUE), "up")
        run(*ip, "route", "add", f"{subnet}.0/24", "dev", device)
    relay(devices, [Direction(way, seed) for seed in (1, 2)])


if __name__ == "__main__":
    main()
