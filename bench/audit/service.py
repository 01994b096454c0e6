"""The audit service as a process of its own, for the bench of its answers: with what it imports, and nothing else."""

import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import trio
from prometheus_client import CollectorRegistry

from bench.audit import ledger as stream
from pipeline.audit.config import AuditConfig
from pipeline.audit.judgement.verdicts import Expectations, Finding
from pipeline.audit.page.audit_page import audit_page_routes
from pipeline.audit.server import run_audit
from pipeline.cli.terminal.connect import wall_clock
from pipeline.client.cluster.cluster import open_cluster
from pipeline.client.cluster.config import ClientConfig
from pipeline.net.heap import free_large_blocks, keep_one_heap


def main() -> None:
    """Run the service of the addresses, topics and folder in the first argument until killed; print its port."""
    keep_one_heap()
    free_large_blocks()
    trio.run(_run_audit, *json.loads(sys.argv[1]))


async def _run_audit(addresses: dict[str, str], names: list[str], folder: str) -> None:
    expected = stream.expected(names)
    tables = {name: [{"name": name, "bootstrap.servers": address}] for name, address in addresses.items()}
    config = AuditConfig.model_validate(
        {"http.listen": "127.0.0.1:0", "live": tables["east"], "replica": tables["hub"], "snapshot.dir": folder}
    )

    async def read() -> Expectations:
        return expected

    async def narrow(finding: Finding, _: Sequence[Finding]) -> Sequence[Finding]:
        return [finding]

    async with AsyncExitStack() as stack:
        clusters = {
            each.name: await stack.enter_async_context(open_cluster(ClientConfig(bootstrap=each.bootstrap)))
            for each in config.clusters
        }
        run = partial(
            run_audit,
            config,
            clusters,
            read_expectations=read,
            narrow=narrow,
            clock=wall_clock,
            metrics=CollectorRegistry(),
            page=audit_page_routes(),
        )
        async with trio.open_nursery() as nursery:
            address = await nursery.start(run)
            print(address.port, flush=True)


if __name__ == "__main__":
    main()
