"""Runs scenarios in a network of its own: `run_scenarios` starts `python -m tests.support.cluster.run JSON` there.

The process prints the outcome of each scenario as a line of JSON. When a scenario leaves a cluster that cannot be used,
the next one gets a new cluster.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from pipeline.processes import DIE_WITH_PARENT
from tests.support.cluster.faults import FaultRunner, Outcome, Scenario, by_name
from tests.support.cluster.network import Network, isolated, network, require_networks
from tests.support.cluster.systems import KAFKA, SYSTEMS, network_places

NODES = (1, 2, 3)
HOLD_S = 15.0
SESSION_TIMEOUT_MS = 9000
"""Of a broker that is not heard of: the default of Apache Kafka (KRaft)."""
SESSION_TIMEOUT = {True: "broker.session.timeout.ms", False: "zookeeper.session.timeout.ms"}
UNUSABLE = (OSError, RuntimeError, TimeoutError, AssertionError, subprocess.SubprocessError)


def run_scenarios(
    system: str,
    scenarios: Sequence[Scenario],
    directory: Path,
    *,
    hold_s: float = HOLD_S,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Outcome]:
    """Outcomes as they come. Raises NetworkError, or RuntimeError if the process ends too early."""
    require_networks()
    asked = {
        "system": system,
        "scenarios": [scenario.name for scenario in scenarios],
        "directory": str(directory),
        "hold_s": hold_s,
        "settings": {SESSION_TIMEOUT[system == KAFKA]: session_timeout_ms, **(settings or {})},
    }
    directory.mkdir(parents=True, exist_ok=True)
    inside = isolated([sys.executable, "-m", "tests.support.cluster.run", json.dumps(asked)])
    command = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *inside]
    log = directory / "run.log"
    with log.open("ab") as said, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                yield Outcome.from_json(line)
        finally:
            process.send_signal(signal.SIGTERM)
    if process.returncode:
        raise RuntimeError(f"the run ended with {process.returncode}; {log} ends:\n{log.read_text()[-3000:]}")


def main() -> None:
    asked = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    scenarios = by_name(asked["scenarios"])
    with network(NODES) as hosts:
        attempt = 0
        while scenarios:
            attempt += 1
            with closing(_outcomes(asked, scenarios, hosts, Path(asked["directory"], str(attempt)))) as outcomes:
                done = 0
                for outcome in outcomes:
                    print(outcome.as_json(), flush=True)
                    done += 1
            scenarios = scenarios[done:]


def _outcomes(
    asked: Mapping[str, Any], scenarios: Sequence[Scenario], hosts: Network, directory: Path
) -> Generator[Outcome]:
    """Until one cannot be run on this cluster any more, at least one."""
    name = scenarios[0].name
    with ExitStack() as stack:
        try:
            open_cluster = SYSTEMS[asked["system"]]
            cluster = stack.enter_context(open_cluster(directory, network_places(hosts), asked["settings"]))
            cluster.start()
            runner = FaultRunner(cluster, hosts, hold_s=asked["hold_s"])
            runner.prepare()
            for scenario in scenarios:
                name = scenario.name
                yield runner.run(scenario)
        except UNUSABLE as error:
            for number in hosts.hosts:
                hosts.heal(number)
            yield Outcome(name=name, error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
