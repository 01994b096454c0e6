"""`pipeline audit count`: count a cluster whose brokers do not count, such as Apache Kafka."""

import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from pipeline.cli.foreground import Config, run_service, service_metrics
from pipeline.cli.terminal.connect import randomness, wall_clock
from pipeline.cli.terminal.settings import Settings

if TYPE_CHECKING:
    from pipeline.audit.counting.reader_config import ReaderConfig


def count(config: Config) -> None:
    """Count a cluster whose brokers do not count, in the foreground; see docs/audit/foreign.md for its settings.

    Every byte of the counted topics is fetched once.
    """
    run_service(_read, _run, config)


def _read(settings: Settings) -> "tuple[ReaderConfig]":
    from pipeline.audit.counting.reader_config import ReaderConfig

    return (ReaderConfig.from_settings(settings),)


async def _run(config: "ReaderConfig") -> None:
    from pipeline.audit.counting.reader_service import run_reader_service
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig

    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(
            open_cluster(
                ClientConfig(bootstrap=config.bootstrap, client_id="pipeline-audit-count", security=config.security)
            )
        )
        reports = source
        if config.reports:
            reports = await stack.enter_async_context(
                open_cluster(
                    ClientConfig(
                        bootstrap=config.reports, client_id="pipeline-audit-count", security=config.reports_security
                    )
                )
            )
        await run_reader_service(
            config,
            source,
            reports,
            host=socket.gethostname(),
            clock=wall_clock,
            rng=randomness(),
            metrics=service_metrics(),
        )
