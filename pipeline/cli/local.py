"""`pipeline local`: a cluster on this machine, to try things out, for tests and development."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.foreground import run_until_signalled
from pipeline.cli.terminal import output
from pipeline.cli.terminal.files import held_alone
from pipeline.cli.terminal.settings import parse_assignments
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.model import BROKER_IDS

if TYPE_CHECKING:
    from pipeline.cli.child_services import ServiceUnit, Unit, ZooKeeperUnit
    from pipeline.cli.secured.local_security import LocalSecurity

app = typer.Typer(no_args_is_help=True, help="A cluster on this machine, to try things out.")

LOCAL_SESSION_TIMEOUT_MS = 6000
CHOSEN = frozenset({"broker.id", "node.id", "listeners", "log.dirs", "log.dir", "zookeeper.connect", "http.listen"})
"""Settings of brokers that no option sets."""
MAX_BROKERS = 32
MAX_REPLICAS = 3
"""Replicas of internal topics: committed offsets and schemas."""
MAX_PORT = 65535
ZOOKEEPER_PORT = 2181
REGISTRY_PORT = 8081
AUDIT_PORT = 8084


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Options of `local up`."""

    brokers: int
    port: int
    settings: dict[str, str] = field(default_factory=dict)
    registry: bool = False
    audit: bool = False
    secure: bool = False
    restart_after_s: float = 5.0


@app.command()
def up(
    brokers: Annotated[int, typer.Option(min=1, max=MAX_BROKERS, help="Number of brokers.")] = 1,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_PORT,
            help=f"Port of the first broker; further brokers use the next ports. ZooKeeper uses {ZOOKEEPER_PORT}, the "
            f"registry {REGISTRY_PORT}, the audit {AUDIT_PORT}, or a free port if it is taken. 0: free ports for all.",
        ),
    ] = 9092,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Directory for data and logs, kept for the next start. Default: a temporary one, removed."
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Broker setting; may be repeated. No secrets."),
    ] = None,
    registry: Annotated[bool, typer.Option("--registry", help="Start a schema registry too.")] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Start an audit service too; the brokers' datacenter is local.")
    ] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Protect brokers and services by TLS, logins and ACLs. Authority, certificates, users and settings "
            "of clients are created in the directory.",
        ),
    ] = False,
    restart_after: Annotated[
        float, typer.Option(min=0, max=3600, help="Restart a process that died after this many seconds; 0: never.")
    ] = 5.0,
) -> None:
    """Start ZooKeeper and brokers on this machine and stay in the foreground.

    Committed offsets and schemas have up to three replicas. Other topics have one replica by default; --set
    default.replication.factor=3 changes that.

    When all processes are ready, a line of JSON on stdout names the addresses and process ids. Each restart of a
    process prints another line. SIGTERM and SIGINT stop all processes.
    """
    options = LocalOptions(
        brokers=brokers,
        port=port,
        settings=parse_assignments(assignments or []),
        registry=registry,
        audit=audit,
        secure=secure,
        restart_after_s=restart_after,
    )
    output.configure_logging()
    if directory is not None:
        _up(directory.absolute(), options)
    else:
        with _temporary_directory() as root:
            _up(root, options)


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    """Make a directory that is removed at the end, unless the command failed and its logs tell why."""
    root = Path(tempfile.mkdtemp(prefix="pipeline-local-"))
    has_failed = True
    try:
        yield root
        has_failed = False
    finally:
        if not has_failed or not any(root.rglob("*.log")):
            shutil.rmtree(root, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The units of a local cluster by stages of their start, and their addresses."""

    zookeeper: "ZooKeeperUnit"
    stages: "Sequence[Sequence[Unit]]"
    addresses: dict[str, str]
    http: dict[str, str]
    """URLs of metrics and health, by unit."""
    security: "LocalSecurity | None"
    broker_ports: list[int]
    is_taken_up: bool
    """True if the directory holds a cluster of an earlier start."""

    @property
    def units(self) -> "list[Unit]":
        """All units, in the order of their start."""
        return [unit for stage in self.stages for unit in stage]

    def require_free_ports(self) -> None:
        """Raise PipelineError if a broker's port is taken, before anything runs."""
        from pipeline.processes import is_port_free

        for port in self.broker_ports:
            if not is_port_free(port):
                raise PipelineError(f"port {port} is in use: choose another --port, or 0 for free ports")


def plan_cluster(root: Path, options: LocalOptions) -> ClusterPlan:
    """Choose ports and settings. Raises ConfigurationError for wrong broker settings, before anything runs."""
    from pipeline.cli.broker import read_broker_settings
    from pipeline.cli.child_services import ServiceUnit, ZooKeeperUnit
    from pipeline.cli.secured.local_security import LOGINS, LocalSecurity
    from pipeline.cli.secured.shown_secrets import refuse_shown_secrets
    from pipeline.coordination.embedded import ZooKeeperProcess
    from pipeline.processes import free_port

    refuse_shown_secrets(options.settings)
    if chosen := sorted(CHOSEN & options.settings.keys()):
        raise ConfigurationError(f"--set {chosen[0]}", "cannot be set: `local up` chooses it for each broker")
    if options.port + options.brokers - 1 > MAX_PORT:
        raise ConfigurationError("--port", f"{options.port} leaves too few ports for {options.brokers} brokers")
    zookeeper_port = _choose_port(ZOOKEEPER_PORT, options)
    zookeeper = f"127.0.0.1:{zookeeper_port}"
    ports = [options.port + i if options.port else free_port() for i in range(options.brokers)]
    common = {
        "zookeeper.session.timeout.ms": LOCAL_SESSION_TIMEOUT_MS,
        "offsets.topic.replication.factor": min(MAX_REPLICAS, options.brokers),
        **({"datacenter": "local"} if options.audit else {}),
        **options.settings,
        "zookeeper.connect": zookeeper,
    }
    security = LocalSecurity(root / "security") if options.secure else None
    authority = None if security is None else security.authority_file
    brokers: list[ServiceUnit] = []
    for number, port in enumerate(ports, start=1):
        directory = root / f"broker-{number}"
        own = {
            "broker.id": number,
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(directory / "logs"),
        }
        if security is None:
            settings = {**common, **own}
            read_broker_settings(settings)
        else:
            protected = security.broker_settings(directory.name, port) | security.http_settings(directory.name)
            settings = {**protected, **common, **own, "listeners": protected["listeners"]}
            read_broker_settings({key: value for key, value in settings.items() if key not in LOGINS})
        brokers.append(ServiceUnit(directory.name, "broker", directory, settings, authority=authority))
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
    services = _plan_services(root, options, bootstrap, security)
    zookeeper_unit = ZooKeeperUnit(ZooKeeperProcess(root / "zookeeper", port=zookeeper_port))
    return ClusterPlan(
        zookeeper=zookeeper_unit,
        stages=[stage for stage in ([zookeeper_unit], brokers, services) if stage],
        addresses={"bootstrap": bootstrap, "zookeeper": zookeeper, **{unit.name: unit.url for unit in services}},
        http={unit.name: unit.url for unit in (*brokers, *services)},
        security=security,
        broker_ports=ports,
        is_taken_up=(root / "zookeeper").exists(),
    )


def _plan_services(
    root: Path, options: LocalOptions, bootstrap: str, security: "LocalSecurity | None"
) -> "list[ServiceUnit]":
    from pipeline.cli.child_services import ServiceUnit

    def contact(user: str) -> dict[str, object]:
        return {"bootstrap.servers": bootstrap, **({} if security is None else security.client_settings(user))}

    def planned(noun: str, settings: dict[str, object], usual_port: int) -> ServiceUnit:
        protected = {} if security is None else security.http_settings(noun)
        authority = None if security is None else security.authority_file
        port = _choose_port(usual_port, options)
        return ServiceUnit(noun, noun, root / noun, {**settings, **protected}, port, authority)

    services = []
    if options.registry:
        replicas = min(MAX_REPLICAS, options.brokers)
        settings = {**contact("registry"), "kafkastore.topic.replication.factor": replicas}
        services.append(planned("registry", settings, REGISTRY_PORT))
    if options.audit:
        live = [{"name": options.settings.get("datacenter", "local"), **contact("audit")}]
        services.append(planned("audit", {"live": live}, AUDIT_PORT))
    return services


def _choose_port(usual: int, options: LocalOptions) -> int:
    from pipeline.processes import free_port, is_port_free

    return usual if options.port and is_port_free(usual) else free_port()


def _up(root: Path, options: LocalOptions) -> None:
    import trio

    from pipeline.cli.terminal.connect import randomness

    plan = plan_cluster(root, options)
    with held_alone(root):
        plan.require_free_ports()
        if plan.security is not None:
            servers = [unit.name for stage in plan.stages[1:] for unit in stage]
            plan.security.prepare(servers, randomness())
            plan.zookeeper.server.protection = plan.security.zookeeper_protection()
        trio.run(run_until_signalled, partial(_run, plan, options.restart_after_s))


async def _run(plan: ClusterPlan, restart_after_s: float) -> None:
    """Start all units stage by stage, print the addresses, keep the units running; stop them in reverse.

    The brokers stop together, so that none hands its leaderships to a broker that stops next.
    """
    import trio

    from pipeline.cli.child_services import stop_in_reverse
    from pipeline.cli.terminal.connect import randomness
    from pipeline.net.nurseries import unwrapped_errors

    begun: list[Sequence[Unit]] = []
    pids: dict[str, int] = {}

    async def start(unit: "Unit", progress: output.Progress) -> None:
        pids[unit.name] = await unit.start()
        progress.advance()

    try:
        with output.progress("Starting", total=len(plan.units)) as progress, unwrapped_errors():
            for stage in plan.stages:
                progress.describe(f"Starting {', '.join(unit.name for unit in stage)}")
                begun.append(stage)
                async with trio.open_nursery() as nursery:
                    for unit in stage:
                        nursery.start_soon(start, unit, progress)
                if stage is plan.stages[0] and plan.is_taken_up:
                    await _forget_former_brokers(plan)
                if stage is plan.stages[0] and plan.security is not None:
                    await plan.security.seed_at(plan.addresses["zookeeper"], randomness())
        try:
            secured = {} if plan.security is None else {"security": plan.security.told()}
            told = {**plan.addresses, "http": plan.http, **secured}
            output.print_json({**told, "pids": {unit.name: pids[unit.name] for unit in plan.units}})
        except BrokenPipeError:
            output.discard_stdout()
            output.exit_with("standard output is closed, so the addresses cannot be printed")
        async with trio.open_nursery() as nursery:
            for unit in plan.units:
                nursery.start_soon(_keep_running, unit, restart_after_s)
            nursery.start_soon(trio.sleep_forever)  # until a signal, also when no unit is left running
    finally:
        await stop_in_reverse(begun)


async def _forget_former_brokers(plan: ClusterPlan) -> None:
    """Remove the registrations of brokers that were killed together with their ZooKeeper.

    This process holds the directory, so the brokers are dead; ZooKeeper would keep their registrations until their
    sessions expire, and refuse brokers with the same ids at other ports.
    """
    from pipeline.coordination.zookeeper import open_zookeeper
    from pipeline.coordination.zookeeper_security import OPEN_ZOOKEEPER
    from pipeline.errors import NoNodeError

    security = OPEN_ZOOKEEPER if plan.security is None else plan.security.zookeeper_security()
    async with open_zookeeper(plan.addresses["zookeeper"], security=security) as client:
        for number in range(1, len(plan.broker_ports) + 1):
            with suppress(NoNodeError):
                await client.delete(f"{BROKER_IDS}/{number}")


async def _keep_running(unit: "Unit", restart_after_s: float) -> None:
    """Restart a unit each time its process dies by itself; with 0, leave it dead."""
    import trio

    from pipeline.diagnostics import get_logger

    logger = get_logger(__name__)
    while True:
        code = await unit.wait()
        if code == 0:  # somebody asked it to stop
            logger.info("process_stopped", name=unit.name)
        else:
            logger.warning("process_died", name=unit.name, exit_code=code)
        if restart_after_s == 0:
            return
        await trio.sleep(restart_after_s)
        try:
            pid = await unit.start()
        except Exception as error:
            logger.error("restart_failed", name=unit.name, error=str(error))
            continue
        logger.info("restarted", name=unit.name, pid=pid)
        try:
            output.print_json({"restarted": unit.name, "pid": pid})
        except (BrokenPipeError, typer.Exit):  # a reader that left, or a full disk, is no reason to end a cluster
            output.discard_stdout()
            logger.warning("stdout_lost", advice="restarts are named here alone from now on")
