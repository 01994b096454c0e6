"""`python -m deploy.figure3`: Figure 3 of the paper on this machine, in network namespaces; docs/deploy/figure3.md."""

import argparse
import os
import sys

from deploy.figure3 import networks
from deploy.figure3.errors import FigureError
from deploy.figure3.lifecycle import (
    bring_up,
    is_prepared,
    is_ready,
    pid_of,
    prepare,
    require_namespaces,
    require_this_machine,
    take_down,
)
from deploy.figure3.measurement import measure
from deploy.figure3.plan import ROOT, Plan

EXIT_FAILED = 1
COMMAND = "python -m deploy.figure3"


def main() -> int:
    """Run a command, and return its exit code."""
    given = _options().parse_args()
    try:
        return _run(given)
    except (FigureError, KeyboardInterrupt) as error:
        print(f"figure3: {str(error) or 'interrupted'}", file=sys.stderr)
        if given.command == "up":
            print(f"figure3: what runs stays. `{COMMAND} up` goes on, `{COMMAND} down` removes all", file=sys.stderr)
        return EXIT_FAILED


def _run(given: argparse.Namespace) -> int:
    """Run a command. Raises FigureError."""
    if given.command == "down":
        require_namespaces()
        with networks.turn():
            take_down()
        return 0
    require_this_machine()
    plan = Plan(**({"delay_ms": given.delay_ms, "mbit": given.mbit} if given.command == "up" else {}))
    if not networks.is_on(networks.USERS, os.getpid()):
        if given.command == "up":
            with networks.turn():
                prepare(plan)
        elif not is_prepared():
            raise FigureError(f"the figure is down: run `{COMMAND} up`")
        _go_to_users()
    if given.command == "up":
        with networks.turn():
            bring_up(plan, lambda text: print(text, flush=True))
        return 0
    return _show(plan) if given.command == "status" else measure(plan, given)


def _options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    commands = options.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start all that does not run yet")
    up.add_argument("--delay-ms", type=float, default=40.0, help="of the long way, in each direction (default 40)")
    up.add_argument("--mbit", type=float, default=100.0, help="rate of the long way, in each direction (default 100)")
    commands.add_parser("status", help="what runs, and where; exit code 1 if something does not")
    commands.add_parser("down", help="stop everything, also after a crash, and remove all data")
    run = commands.add_parser("measure", help="publish events through balancers and front ends, and follow them")
    run.add_argument("--seconds", type=float, default=60.0, help="time of publishing (default 60)")
    run.add_argument("--rate", type=float, default=1000.0, help="events per second of all users (default 1000)")
    run.add_argument("--lines", type=int, default=20, help="events of a request (default 20)")
    run.add_argument(
        "--age",
        type=float,
        default=7200.0,
        help="seconds since the events happened (default 7200, as those of a device that was offline: the audit "
        "judges an hour once it is over). With 0 the verdict is pending until the hour is over",
    )
    run.add_argument("--deadline", type=float, default=180.0, help="seconds for all events to arrive (default 180)")
    run.add_argument("--json", action="store_true", help="print one JSON document")
    return options


def _go_to_users() -> None:
    """Become this command on the host of the users, which reaches all others."""
    os.chdir(ROOT)
    command = networks.inside(networks.USERS, [sys.executable, "-m", "deploy.figure3", *sys.argv[1:]])
    os.execvp(command[0], command)


def _show(plan: Plan) -> int:
    rows = [(part, pid_of(part), is_ready(part)) for part in plan.parts]
    print(f"{'PART':32} {'ADDRESS':14} {'PID':>8}  STATE")
    for part, pid, ready in rows:
        address = plan.hosts.get(part.host, ("", "router"))[1]
        state = "ready" if ready else "not ready" if pid else "down"
        print(f"{part.name:32} {address:14} {pid or '-':>8}  {state}")
    return 0 if all(ready for _, _, ready in rows) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
