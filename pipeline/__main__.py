"""`python -m pipeline` is the command `pipeline`."""

from pipeline.cli.console import main

main()
