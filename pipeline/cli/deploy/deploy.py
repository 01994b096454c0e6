"""`pipeline deploy`: checks the description of a company, and writes the settings of every service from it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.settings import read_document

if TYPE_CHECKING:
    from pipeline.deployment.company import Company

MAX_SHOWN_FAULTS = 100

app = typer.Typer(no_args_is_help=True, help="Settings of every service of a company, from one description.")
Description = Annotated[Path, typer.Argument(metavar="COMPANY.toml", help="Description of the company.")]


@app.command()
def check(company: Description) -> None:
    """Check a description, and show all of its faults. Writes nothing.

    Exit code 1 if there are faults.
    """
    found = _require_sound(company)
    from pipeline.deployment.services import services_of

    services = output.counted(len(services_of(found)), "service")
    output.say(f"{company}: {services} on {output.counted(len(found.hosts), 'host')}, no faults.")


@app.command()
def render(
    company: Description,
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the files, made if it is missing.")],
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove files of a former render that the description no longer gives.")
    ] = False,
) -> None:
    """Write settings, unit names and Prometheus targets of all hosts, each in its folder OUT/HOST.

    A description with faults changes nothing (exit code 1). Files that are as they should be are not touched.
    """
    from pipeline.cli.deploy.acl_scripts import acl_scripts
    from pipeline.cli.deploy.render_folder import write_render
    from pipeline.deployment.files import rendered_files

    found = _require_sound(company)
    files = {**rendered_files(found, company.name), **acl_scripts(found, company.name)}
    outcome = write_render(folder, files, prune=prune)
    output.say(f"{folder}: {outcome.written} written, {outcome.unchanged} unchanged, {len(outcome.removed)} removed.")
    for path in outcome.removed:
        output.say(f"removed {path}")
    for path in outcome.stale:
        output.say(f"no longer described: {path}")
    if outcome.stale:
        output.say("Stop these services on their hosts, then run the command with --prune to remove the files.")


def _require_sound(path: Path) -> "Company":
    """Return the company of a description; end the command with all faults if there are any."""
    from pipeline.cli.deploy.service_readers import reader_faults
    from pipeline.deployment.company import company_of
    from pipeline.deployment.faults import faults_of

    company, faults = company_of(read_document(path))
    if company is not None:
        faults = faults_of(company, reader_faults)
    if company is None or faults:
        for fault in faults[:MAX_SHOWN_FAULTS]:
            output.say(output.printable(fault))
        output.exit_with(f"{path} has {output.counted(len(faults), 'fault')}")
    return company
