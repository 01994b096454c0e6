"""`pipeline load`: load topics into a Hadoop file system with Spark, and query the committed data."""

import typer

from pipeline.cli.load.commits import print_files, show_commits
from pipeline.cli.load.export import export
from pipeline.cli.load.package import package
from pipeline.cli.load.query import sql
from pipeline.cli.load.run import run

app = typer.Typer(no_args_is_help=True, help="Load topics into a Hadoop file system with Spark.")

app.command()(run)
app.command("status")(show_commits)
app.command("files")(print_files)
app.command()(sql)
app.command()(export)
app.command()(package)
