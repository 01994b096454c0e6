"""`pipeline load`: load topics into a Hadoop file system with Spark, and query the committed data."""

import typer

from pipeline.cli.load.commits import print_files, show_status
from pipeline.cli.load.complete import complete, show_hours
from pipeline.cli.load.export import export
from pipeline.cli.load.package import package
from pipeline.cli.load.quarantine import app as quarantine_app
from pipeline.cli.load.query import sql
from pipeline.cli.load.run import run
from pipeline.cli.load.upkeep import clean_up_table, join_files, remove_hours, replay_table_hour, verify_table

app = typer.Typer(no_args_is_help=True, help="Load topics into a Hadoop file system with Spark.")

app.command()(run)
app.command("status")(show_status)
app.command("files")(print_files)
app.command()(sql)
app.command()(export)
app.command()(package)
app.command("compact")(join_files)
app.command("expire")(remove_hours)
app.command("clean")(clean_up_table)
app.command("verify")(verify_table)
app.command("replay")(replay_table_hour)
app.command()(complete)
app.command("hours")(show_hours)
app.add_typer(quarantine_app, name="quarantine")
