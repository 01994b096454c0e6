"""What commands share at the terminal: output, files, settings files, connections."""
