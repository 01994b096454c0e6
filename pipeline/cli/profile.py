"""`pipeline profile`: the profiles of the user, each with the addresses of a cluster."""

from typing import Annotated

import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.cli.terminal.profiles import FIELDS, choose_profile, current_profile, profiles_path, read_profiles

app = typer.Typer(
    no_args_is_help=True,
    help="Profiles: addresses of clusters by name, in ~/.config/pipeline/profiles.toml. `--profile NAME` or "
    "PIPELINE_PROFILE chooses one for any command.",
)


@app.command("list")
def list_(json: Json = False) -> None:
    """List the profiles. A star marks the profile in use."""
    profiles = read_profiles()
    used = current_profile()
    rows = [
        {"name": name, "used": used is not None and used.name == name, **{key: getattr(found, key) for key in FIELDS}}
        for name, found in sorted(profiles.items())
    ]
    if json:
        output.print_json({"file": str(profiles_path()), "profiles": rows})
    elif not rows:
        output.say(f"No profiles in {profiles_path()}.")
    else:
        cells = [["*" if row["used"] else "", row["name"], *(row[key] for key in FIELDS)] for row in rows]
        output.say(output.table(["", "NAME", *(key.upper() for key in FIELDS)], cells))


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Default: the profile in use.")] = None,
    json: Json = False,
) -> None:
    """Show a profile."""
    if name is not None:
        choose_profile(name)
    profile = current_profile()
    if profile is None:
        output.exit_with("no profile is in use: give --profile NAME, or set PIPELINE_PROFILE", output.EXIT_USAGE)
    if json:
        output.print_json({"name": profile.name, **{key: getattr(profile, key) for key in FIELDS}})
    else:
        output.say(output.table(["SETTING", "VALUE"], [[key, getattr(profile, key)] for key in ("name", *FIELDS)]))
