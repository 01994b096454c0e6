"""`pipeline zookeeper`: a ZooKeeper server with the jars that PySpark brings."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.terminal import output
from pipeline.coordination.embedded import class_path, find_java
from pipeline.errors import ConfigurationError

LOGGING = Path(__file__).with_name("zookeeper_log4j2.xml")
HEAP_MB = 512

app = typer.Typer(no_args_is_help=True, help="ZooKeeper servers, which a cluster's brokers need.")


@app.command()
def start(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="Settings file of ZooKeeper (zoo.cfg).")],
    own_id: Annotated[
        int | None, typer.Option("--id", min=1, max=255, help="Id of this server in its ensemble: myid.")
    ] = None,
) -> None:
    """Run a ZooKeeper server in the foreground, with JSON lines as its log.

    ZK_SERVER_HEAP is the size of its heap in MB (512), SERVER_JVMFLAGS holds further options of Java. The command
    becomes Java: the process keeps its id.
    """
    output.configure_logging()
    flags = os.environ.get("SERVER_JVMFLAGS", "").split()
    heap = os.environ.get("ZK_SERVER_HEAP", str(HEAP_MB))
    if not heap.isdecimal() or int(heap) == 0:
        raise ConfigurationError("ZK_SERVER_HEAP", f"{heap!r} is not a number of megabytes")
    java = find_java()
    if own_id is not None:
        settings = read_properties(config)
        servers = sorted(key.removeprefix("server.") for key in settings if key.startswith("server."))
        if servers and str(own_id) not in servers:
            raise ConfigurationError("--id", f"{own_id} is none of the servers in {config}: {', '.join(servers)}")
        if not settings.get("dataDir"):
            raise ConfigurationError(f"{config}: dataDir", "is missing")
        keep_id(Path(settings["dataDir"]), own_id)
    command = [
        *(str(java), f"-Xmx{heap}m", f"-Dlog4j2.configurationFile={LOGGING}", *flags, "-cp", class_path()),
        *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)),
    ]
    sys.stdout.flush()
    os.execv(java, command)


def read_properties(config: Path) -> dict[str, str]:
    """Return the settings of a settings file of ZooKeeper. Raises ConfigurationError."""
    try:
        lines = config.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigurationError(str(config), f"cannot be read: {error}") from error
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.lstrip().startswith("#"))
    return {key.strip(): value.strip() for key, value in pairs}


def keep_id(directory: Path, own_id: int) -> None:
    """Write the server's id into its data directory; another id there stays. Raises ConfigurationError."""
    path = directory / "myid"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        known = path.read_text(encoding="ascii").strip() if path.exists() else ""
        if not known:
            path.write_text(f"{own_id}\n", encoding="ascii")
            return
    except (OSError, ValueError) as error:
        raise ConfigurationError("dataDir", f"{path} cannot be read or written: {error}") from error
    if known != str(own_id):
        raise ConfigurationError("--id", f"{path} says {known}, not {own_id}: this directory is another server's")
