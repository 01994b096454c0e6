"""Options that commands of `pipeline schema` share, and the registry that they ask."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import trio
import typer

from pipeline.cli.foreground import REGISTRY_TIMEOUT_S, http_url
from pipeline.cli.terminal.client_config import http_login
from pipeline.cli.terminal.profiles import REGISTRY_VARIABLE, resolve_registry
from pipeline.errors import ConfigurationError
from pipeline.net.nurseries import unwrapped_errors
from pipeline.settings import MAX_INT32

if TYPE_CHECKING:
    from pipeline.client.registry.administration import RegistryAdministration


def _registry_elsewhere() -> str:
    url = resolve_registry()
    if url is None:
        reason = f"is missing: give --registry URL, set {REGISTRY_VARIABLE}, or choose a profile that has one"
        raise ConfigurationError("--registry", reason)
    return url


Url = Annotated[
    str,
    typer.Option(
        "--registry",
        metavar="URL",
        parser=http_url,
        default_factory=_registry_elsewhere,
        show_default=False,
        help="HTTP address of the registry. Default: PIPELINE_REGISTRY, or the profile.",
    ),
]
Subject = Annotated[
    str,
    typer.Argument(metavar="SUBJECT", help="clicks-value for the values of topic clicks, clicks-key for its keys."),
]
Scope = Annotated[
    str | None,
    typer.Argument(
        metavar="SUBJECT",
        help="A subject, a context as :.NAME: , or all contexts as :.__GLOBAL: . Default: the default context.",
    ),
]
SchemaFile = Annotated[Path, typer.Argument(metavar="FILE.avsc", help="File with the schema.")]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="Version of a subject that defines a type that the schema uses; may be repeated.",
    ),
]
Normalize = Annotated[bool, typer.Option("--normalize", help="Let the registry write the schema in its normal form.")]

Result = TypeVar("Result")


def with_registry(url: str, ask: "Callable[[RegistryAdministration], Awaitable[Result]]") -> "Result":
    """Run requests to a registry. Raises what `ask` raises."""
    from pipeline.client.registry.administration import open_registry_administration

    async def run() -> Result:
        async with open_registry_administration([url], login=http_login(), timeout_s=REGISTRY_TIMEOUT_S) as registry:
            return await ask(registry)

    with unwrapped_errors():
        return trio.run(run)


def parse_reference(text: str) -> dict[str, str | int]:
    """Parse `NAME=SUBJECT:VERSION` into a reference of the API. Raises ConfigurationError."""
    name, equals, target = text.partition("=")
    subject, colon, version = target.rpartition(":")
    is_number = version.isascii() and version.isdigit() and 0 < int(version[:11]) <= MAX_INT32
    if not (name and equals and subject and colon and is_number):
        raise ConfigurationError("--reference", f"{text!r} is not of the form NAME=SUBJECT:VERSION")
    return {"name": name, "subject": subject, "version": int(version)}
