"""Parts of all commands: output, files, settings files, connections."""
