"""`pipeline local`: a cluster on this machine, for trying out, for tests and for development."""

import shutil
import signal
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli import output
from pipeline.cli.settings import parse_assignments

if TYPE_CHECKING:
    from pipeline.cli.services import ServiceUnit, Unit

app = typer.Typer(no_args_is_help=True, help="A cluster on this machine.")

LOCAL_SESSION_TIMEOUT_MS = 6000
MAX_BROKERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """What `local up` was asked for."""

    brokers: int
    port: int
    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    registry: bool = False
    audit: bool = False
    restart_after_s: float = 5.0


@app.command()
def up(
    brokers: Annotated[int, typer.Option(min=1, max=MAX_BROKERS, help="How many brokers.")] = 1,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the first broker; 0 takes free ports.")] = 9092,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Where the data lie; kept, and taken up again. Default: a temporary one."),
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A broker setting; may be repeated.")
    ] = None,
    registry: Annotated[bool, typer.Option("--registry", help="Start a schema registry too.")] = False,
    audit: Annotated[bool, typer.Option("--audit", help="Start an audit service too.")] = False,
    restart_after: Annotated[
        float, typer.Option(min=0, max=3600, help="Seconds after which a process that died is started again; 0: never.")
    ] = 5.0,
) -> None:
    """Start ZooKeeper and brokers on this machine and stay in the foreground.

    When all is ready one line of JSON on stdout names the addresses and process ids. SIGTERM and SIGINT stop it all.
    """
    import trio

    settings = parse_assignments(assignments or [])
    root = directory or Path(tempfile.mkdtemp(prefix="pipeline-local-"))
    options = LocalOptions(
        brokers=brokers,
        port=port,
        directory=root.absolute(),
        settings=settings,
        registry=registry,
        audit=audit,
        restart_after_s=restart_after,
    )
    output.configure_logging()
    try:
        trio.run(_run_until_signalled, options)
    finally:
        if directory is None:
            shutil.rmtree(root, ignore_errors=True)


async def _run_until_signalled(options: LocalOptions) -> None:
    import trio

    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run, options)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break


async def _run(options: LocalOptions) -> None:
    """Start all units one after the other, say so, keep them running; cancelled, stop them in the opposite order."""
    import trio

    plan = _Plan(options)
    started: list[Unit] = []
    pids: dict[str, int] = {}
    try:
        with output.progress("Starting", total=len(plan.units)) as progress:
            for unit in plan.units:
                progress.describe(f"Starting {unit.name}")
                started.append(unit)
                pids[unit.name] = await unit.start()
                progress.advance()
        output.print_json({**plan.addresses, "pids": pids})
        async with trio.open_nursery() as nursery:
            for unit in plan.units:
                nursery.start_soon(_keep_running, unit, options.restart_after_s)
    finally:
        with trio.CancelScope(shield=True):
            for unit in reversed(started):
                await unit.stop()


async def _keep_running(unit: "Unit", restart_after_s: float) -> None:
    """Start a unit again each time it dies unasked; with 0, leave it dead."""
    import structlog
    import trio

    log = structlog.get_logger()
    while True:
        code = await unit.wait()
        log.warning("process_died", name=unit.name, exit_code=code)
        if restart_after_s == 0:
            return
        await trio.sleep(restart_after_s)
        try:
            pid = await unit.start()
        except Exception as error:
            log.error("restart_failed", name=unit.name, error=str(error))
            continue
        output.print_json({"restarted": unit.name, "pid": pid})


class _Plan:
    """The units of a local cluster, in the order of their start, and where they will be found."""

    def __init__(self, options: LocalOptions) -> None:
        """Raises ConfigurationError for a broker setting that is none, before anything runs."""
        from pipeline.cli.broker import read_broker_settings
        from pipeline.cli.services import ServiceUnit, ZooKeeperUnit
        from pipeline.coordination.embedded import ZooKeeperProcess
        from pipeline.processes import free_port

        root = options.directory
        zookeeper_port = free_port()
        zookeeper = f"127.0.0.1:{zookeeper_port}"
        ports = [options.port + i if options.port else free_port() for i in range(options.brokers)]
        self.addresses = {"bootstrap": ",".join(f"127.0.0.1:{port}" for port in ports), "zookeeper": zookeeper}
        self.units: list[Unit] = [ZooKeeperUnit(ZooKeeperProcess(root / "zookeeper", port=zookeeper_port))]
        for number, port in enumerate(ports, start=1):
            settings = {
                "zookeeper.session.timeout.ms": LOCAL_SESSION_TIMEOUT_MS,
                **options.settings,
                "broker.id": number,
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "log.dirs": str(root / f"broker-{number}" / "logs"),
                "zookeeper.connect": zookeeper,
            }
            read_broker_settings(settings)
            self.units.append(ServiceUnit(f"broker-{number}", "broker", root / f"broker-{number}", settings))
        bootstrap = self.addresses["bootstrap"]
        if options.registry:
            settings = {"bootstrap.servers": bootstrap, "kafkastore.topic.replication.factor": 1}
            self._add("registry", ServiceUnit("registry", "registry", root / "registry", settings))
        if options.audit:
            name = options.settings.get("datacenter", "local")
            clusters = [{"name": name, "bootstrap.servers": bootstrap}]
            self._add("audit", ServiceUnit("audit", "audit", root / "audit", {"live": clusters}))

    def _add(self, key: str, unit: "ServiceUnit") -> None:
        self.units.append(unit)
        self.addresses[key] = unit.url
