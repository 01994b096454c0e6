"""`python -m pipeline` is the command `pipeline`."""

from pipeline.cli.entry import main

main()
