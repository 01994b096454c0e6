"""`pipeline <noun> <verb>`: assembles the nouns, and turns errors into one line and an exit code.

Each noun is a module that imports costly rooms inside its verbs, so that `--help` and small commands start fast.
"""

import sys

import typer

from pipeline.cli import audit, broker, consume, group, load, local, log, mirror, produce, registry, topic
from pipeline.cli.cluster import cluster
from pipeline.cli.demo import demo
from pipeline.cli.terminal import output
from pipeline.errors import ConfigurationError, PipelineError

app = typer.Typer(
    name="pipeline",
    help="A data pipeline for several datacenters: brokers, mirror, schema registry, audit and Spark loads.",
    epilog=output.EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(local.app, name="local")
app.add_typer(broker.app, name="broker")
app.add_typer(cluster.app, name="cluster")
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(log.app, name="log")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(mirror.app, name="mirror")
app.add_typer(registry.app, name="registry")
app.add_typer(registry.schema_app, name="schema")
app.add_typer(audit.app, name="audit")
app.add_typer(load.app, name="load")
app.command("demo")(demo.demo)


def main() -> None:
    """Run the command line and exit with its code. Commands log warnings; services log more."""
    try:
        output.prepare_streams()
        output.configure_logging("warning")
        app()
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
        output.discard_stdout()
        return output.EXIT_FAILED
    if isinstance(error, PipelineError):
        sys.stderr.write(f"pipeline: {error}\n")
        return output.EXIT_USAGE if isinstance(error, ConfigurationError) else output.EXIT_FAILED
    return None
