"""`python -m pipeline` is the command `pipeline`."""

from pipeline.cli.main import main

main()
