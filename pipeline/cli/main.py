"""`pipeline <noun> <verb>`: assembles the nouns, and turns errors into one line and an exit code.

Each noun is a module that is imported when it is used, and imports costly rooms inside its verbs, so that services and
small commands start fast.
"""

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from traceback import walk_tb
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from pipeline.cli.entry import raise_interruptions, uncollected
from pipeline.cli.terminal import output
from pipeline.cli.terminal.client_config import choose_client_config
from pipeline.cli.terminal.profiles import choose_profile
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.version import VERSION, source_commit

NOUNS = {
    "local": ("local", "app"),
    "broker": ("broker", "app"),
    "zookeeper": ("zookeeper", "app"),
    "cluster": ("cluster.cluster", "app"),
    "topic": ("topic", "app"),
    "group": ("group", "app"),
    "user": ("user", "app"),
    "acl": ("acl.acl", "app"),
    "quota": ("quota", "app"),
    "log": ("log", "app"),
    "produce": ("produce.produce", "produce"),
    "consume": ("consume.consume", "consume"),
    "perf": ("perf.perf", "app"),
    "mirror": ("mirror.mirror", "app"),
    "registry": ("registry", "app"),
    "schema": ("schema.schema", "app"),
    "audit": ("audit.audit", "app"),
    "load": ("load.load", "app"),
    "deploy": ("deploy.deploy", "app"),
    "demo": ("demo.demo", "demo"),
    "profile": ("profile", "app"),
    "http-user": ("http_user", "http_user"),
    "completion": ("completion", "completion"),
}
"""Module of this package and name in it: a Typer with verbs, or the function of a noun that is a command itself."""
TELL_FAILURES = frozenset({"produce", "perf"})
"""Nouns whose commands tell the failures of the client themselves."""


class _Nouns(Mapping[str, Any]):
    """The commands of `NOUNS`, each made when it is asked for."""

    def __getitem__(self, noun: str) -> Any:
        module, name = NOUNS[noun]
        with uncollected():
            found = getattr(import_module(f"pipeline.cli.{module}"), name)
        raise_interruptions()
        alone = typer.Typer(callback=_none, pretty_exceptions_enable=False, rich_markup_mode=None)
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=noun)
        else:
            alone.command(noun)(found)
        command = typer.main.get_group(alone).commands[noun]
        _let_choose_profile(command, noun)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(NOUNS)

    def __len__(self) -> int:
        return len(NOUNS)


class _Group(TyperGroup):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = cast("Any", _Nouns())

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the arguments, and print help if that is asked for. Raises typer.Exit if stdout's reader has left."""
        with _exit_of_left_reader():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Raises typer.Exit if stdout's reader has left, since typer would end with 1."""
        with _exit_of_left_reader():
            return super().invoke(ctx)


@contextmanager
def _exit_of_left_reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        from pipeline.cli.terminal.interruption import EXIT_READER_GONE  # with trio, which help does not need

        output.discard_stdout()  # what is in its buffer could not be written at exit
        raise typer.Exit(EXIT_READER_GONE) from None


def _none() -> None:
    """Do nothing: the nouns do all."""


ADDED = frozenset({"profile", "client_config"})
"""Options of all commands that connect to a cluster."""


def _let_choose_profile(command: Any, noun: str) -> None:
    """Add options to each command below that asks a cluster, its ZooKeeper or a registry."""
    for below in getattr(command, "commands", {}).values():
        _let_choose_profile(below, noun)
    names = {parameter.name for parameter in command.params}
    is_of_load = noun == "load" and "bootstrap" in names
    if "zookeeper" in names or "url" in names or is_of_load:
        alone = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)
        alone.command()(_choose_profile)
        added = {"client_config"} if is_of_load else ADDED
        command.params += [option for option in typer.main.get_command(alone).params if option.name in added]


def _choose_profile(
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="Profile with the addresses. Default: PIPELINE_PROFILE.",
            is_eager=True,
            expose_value=False,
            callback=choose_profile,
        ),
    ] = None,
    client_config: Annotated[
        str | None,
        typer.Option(
            "--client-config",
            metavar="FILE",
            help="Client settings of TLS and SASL, key=value or TOML. Default: PIPELINE_CLIENT_CONFIG.",
            is_eager=True,
            expose_value=False,
            callback=choose_client_config,
        ),
    ] = None,
) -> None:
    """Do nothing: the options' callbacks do all."""


def _show_version(is_asked: bool) -> None:
    if is_asked:
        output.say(f"pipeline {VERSION} (commit {source_commit() or 'unknown'}, Python {platform.python_version()})")
        raise typer.Exit


def _prepare(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version, and exit.")
    ] = False,
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="Profile with the addresses of the cluster.")
    ] = None,
) -> None:
    choose_profile(profile)


_OF_LOADS = frozenset({"pyspark", "py4j", "pyarrow", "hdfs_native"})
"""Packages that an image of the services alone lacks."""
_INSTALL_ALL = "install the whole package, or use the image that is built without `--target services`"


app = typer.Typer(
    name="pipeline",
    cls=_Group,
    callback=_prepare,
    help="A data pipeline for several datacenters: brokers, mirror, schema registry, audit and Spark loads.",
    epilog=output.EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line and exit with its code. Commands log warnings; services log more."""
    try:
        output.prepare_streams()
        output.configure_logging("critical" if {*sys.argv[1:2]} & TELL_FAILURES else "warning")
        if "_PIPELINE_COMPLETE" in os.environ:  # a shell asks; see completion
            from typer.completion import completion_init  # type: ignore[attr-defined]

            completion_init()
        app(prog_name="pipeline")
    except BaseException as error:
        code = _explain(error)
        if code is None:
            raise
        sys.exit(code)


def _explain(error: BaseException) -> int | None:
    """Print an expected error as one line; None for an unexpected error (it needs its traceback)."""
    if isinstance(error, BaseExceptionGroup):
        from pipeline.net.nurseries import essential_error

        error = essential_error(error)
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return output.EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader of our output went away (`| head`); keep Python from complaining at exit.
        from pipeline.cli.terminal.interruption import EXIT_READER_GONE

        output.discard_stdout()
        return EXIT_READER_GONE
    if isinstance(error, OSError) and _is_of_help(error):
        output.discard_stdout()
        sys.stderr.write(f"pipeline: cannot write to standard output: {error.strerror}\n")
        return output.EXIT_FAILED
    if isinstance(error, PipelineError):
        sys.stderr.write(f"pipeline: {error}\n")
        return output.EXIT_USAGE if isinstance(error, ConfigurationError) else output.EXIT_FAILED
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        missing = error.name.partition(".")[0]
        if missing in _OF_LOADS:
            sys.stderr.write(f"pipeline: {missing} is not installed, and this command needs it: {_INSTALL_ALL}\n")
            return output.EXIT_FAILED
    return None


def _is_of_help(error: OSError) -> bool:
    """True for an error of stdout while help was printed, which is not done by `output`."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_code.co_name == "echo"
