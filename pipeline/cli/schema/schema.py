"""`pipeline schema`: Avro schemas in a registry, ours or any with Confluent's API."""

import typer

from pipeline.cli.schema.check import check_schemas
from pipeline.cli.schema.configs import config_app, mode_app
from pipeline.cli.schema.delete import delete_schema
from pipeline.cli.schema.diff import diff_versions
from pipeline.cli.schema.get import get_schema, list_subjects, show_version
from pipeline.cli.schema.register import register_schema
from pipeline.cli.schema.transfer import export_registry, import_registry

app = typer.Typer(no_args_is_help=True, help="Avro schemas in a registry.")

app.command("register")(register_schema)
app.command("get")(get_schema)
app.command("show")(show_version)
app.command("list")(list_subjects)
app.command("check")(check_schemas)
app.command("diff")(diff_versions)
app.command("delete")(delete_schema)
app.add_typer(config_app, name="config")
app.add_typer(mode_app, name="mode")
app.command("export")(export_registry)
app.command("import")(import_registry)
