"""Faults of a cluster of three: the longest stop of writing, beside Apache Kafka's under the same faults and client.

Every scenario of `tests.support.cluster.faults`, in a network of its own; then five brokers of ours with 2,000
partitions, of which each is restarted. What is lost, doubled, out of order or not read by the group, and errors that
reach the application, make a row fail, whatever its ratio.
"""

import tempfile
from pathlib import Path

from bench.faults import rolling
from bench.page import machine, write_part
from bench.report import Options, Row, Show, Target, markdown
from tests.support.cluster.faults import MATRIX, Outcome, Scenario
from tests.support.cluster.run import run_scenarios
from tests.support.cluster.systems import KAFKA, OURS

TIMES_KAFKA = Target(bound=1.5, at_least=False)


def measure(options: Options, show: Show) -> list[Row]:
    """All selected rows; a quick run leaves out the bouncing ones."""
    scenarios = [
        scenario
        for scenario in MATRIX
        if options.selects(scenario.name) and not (options.quick and scenario.is_bouncing)
    ]
    ours = _outcomes(OURS, scenarios, show)
    theirs = {} if options.alone else _outcomes(KAFKA, scenarios, show)
    rows = [_row(ours[scenario.name], theirs.get(scenario.name)) for scenario in scenarios]
    return rows + rolling.measure(options, show)


def _outcomes(system: str, scenarios: list[Scenario], show: Show) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="pipeline-faults-") as directory:
        for outcome in run_scenarios(system, scenarios, Path(directory)) if scenarios else ():
            found[outcome.name] = outcome
            show(f"{system}: {len(found)} of {len(scenarios)}, last {outcome.name}")
    return found


def _row(ours: Outcome, theirs: Outcome | None) -> Row:
    stop_s = None if ours.verdict is None else ours.verdict.longest_stop_s
    if theirs is None:
        return Row(name=ours.name, unit="s", ours=stop_s, error="; ".join(ours.faults))
    return Row(
        name=ours.name,
        unit="s",
        ours=stop_s,
        peer=KAFKA,
        theirs=None if theirs.verdict is None else theirs.verdict.longest_stop_s,
        target=TIMES_KAFKA,
        error="; ".join([*ours.faults, *(f"{KAFKA}: {fault}" for fault in theirs.faults)]),
    )


def publish(rows: list[Row], _options: Options) -> None:
    """The table of a full run goes to docs/benchmarks.md."""
    write_part("faults", f"Measured on {machine()}.\n\n{markdown(rows)}", target="test-faults")
