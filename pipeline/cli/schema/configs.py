"""`pipeline schema config` and `pipeline schema mode`: settings of the registry, of contexts and of subjects."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.schema.access import Scope, Url, with_registry
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.schema_registry.avro.compatibility import CompatibilityLevel

if TYPE_CHECKING:
    from pipeline.client.registry.administration import RegistryAdministration

config_app = typer.Typer(no_args_is_help=True, help="Compatibility levels: which schemas may follow which.")
mode_app = typer.Typer(no_args_is_help=True, help="Modes: whether schemas may be registered.")

MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
LEVELS = ", ".join(CompatibilityLevel)


@config_app.command("get")
def get_config(url: Url, scope: Scope = None, json: Json = False) -> None:
    """Print the config that holds for a subject, a context, or all that have none of their own."""

    async def ask(registry: "RegistryAdministration") -> tuple[Mapping[str, Any], bool]:
        own = await registry.config(scope)
        found = own if own is not None else await registry.config(scope, inherited=True)
        if found is None:
            raise PipelineError("the registry has no configs")
        return found, own is None

    config, inherited = with_registry(url, ask)
    if json:
        output.print_json({"subject": scope, "config": config, "inherited": inherited})
    else:
        for name, value in config.items():
            output.say(f"{name} = {value}")
        _say_if_inherited(scope, inherited)


@config_app.command("set")
def set_config(
    url: Url,
    scope: Scope = None,
    level: Annotated[str | None, typer.Option(metavar="LEVEL", help=f"Compatibility level: {LEVELS}.")] = None,
    normalize: Annotated[
        bool | None,
        typer.Option("--normalize/--no-normalize", help="Write schemas in their normal form when they are registered."),
    ] = None,
    json: Json = False,
) -> None:
    """Set the compatibility level, or whether schemas are normalized; what is not named stays."""
    config: dict[str, Any] = {}
    if level is not None:
        if level.upper() not in set(CompatibilityLevel):
            raise ConfigurationError("--level", f"must be one of {LEVELS}")
        config["compatibilityLevel"] = level.upper()
    if normalize is not None:
        config["normalize"] = normalize
    if not config:
        raise ConfigurationError("--level", "is missing: give --level or --normalize")
    with_registry(url, lambda registry: registry.set_config(config, scope))
    if json:
        output.print_json({"subject": scope, "config": config})
    else:
        output.say(f"{_named(scope)}: {', '.join(f'{name} = {value}' for name, value in config.items())}")


@config_app.command("reset")
def reset_config(url: Url, scope: Scope = None) -> None:
    """Remove a config, so that the context's or the registry's holds again."""
    with_registry(url, lambda registry: registry.reset_config(scope))
    output.say(f"{_named(scope)}: reset.")


@mode_app.command("get")
def get_mode(url: Url, scope: Scope = None, json: Json = False) -> None:
    """Print the mode that holds for a subject, a context, or all that have none of their own."""

    async def ask(registry: "RegistryAdministration") -> tuple[str, bool]:
        own = await registry.mode(scope)
        found = own if own is not None else await registry.mode(scope, inherited=True)
        if found is None:
            raise PipelineError("the registry has no modes")
        return found, own is None

    mode, inherited = with_registry(url, ask)
    if json:
        output.print_json({"subject": scope, "mode": mode, "inherited": inherited})
    else:
        output.say(mode)
        _say_if_inherited(scope, inherited)


@mode_app.command("set")
def set_mode(
    mode: Annotated[str, typer.Argument(metavar="MODE", help=f"One of {', '.join(MODES)}.")],
    url: Url,
    scope: Scope = None,
    force: Annotated[
        bool, typer.Option("--force", help="Set IMPORT though there are schemas; these stay, also soft-deleted ones.")
    ] = False,
    json: Json = False,
) -> None:
    """Set a mode. In IMPORT, schemas are registered with their ids only, as `pipeline schema import` does."""
    if mode.upper() not in MODES:
        raise ConfigurationError("MODE", f"must be one of {', '.join(MODES)}")
    with_registry(url, lambda registry: registry.set_mode(mode.upper(), scope, force=force))
    if json:
        output.print_json({"subject": scope, "mode": mode.upper()})
    else:
        output.say(f"{_named(scope)}: {mode.upper()}")


@mode_app.command("reset")
def reset_mode(url: Url, scope: Scope = None) -> None:
    """Remove a mode, so that the context's or the registry's holds again."""
    with_registry(url, lambda registry: registry.reset_mode(scope))
    output.say(f"{_named(scope)}: reset.")


def _named(scope: str | None) -> str:
    return "Default context" if scope is None else output.printable(scope)


def _say_if_inherited(scope: str | None, inherited: bool) -> None:
    if scope is not None and inherited:
        output.note(f"{output.printable(scope)} has none of its own.")
