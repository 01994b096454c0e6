"""The start of a command: what it loads, and the garbage collector around it."""

import gc
import json
import subprocess
import sys

from pipeline.cli.entry import uncollected

PROGRAM = """
import gc, json, sys
from pipeline.cli.entry import main

sys.argv = ["pipeline", "mirror", "start", "--help"]
try:
    main()
except SystemExit:
    pass
heavy = sorted({"rich", "starlette", "numpy", "pyarrow", "asyncio"} & set(sys.modules))
import rich.progress
print(json.dumps([heavy, gc.isenabled(), gc.get_freeze_count() > 10_000]), file=sys.stderr)
"""


def test_a_command_loads_no_libraries_that_it_does_not_need() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=400, check=True)
    assert "--config" in done.stdout
    assert json.loads(done.stderr.strip().splitlines()[-1]) == [["asyncio"], True, True]  # structlog loads asyncio


def test_objects_of_imports_are_not_collected() -> None:
    frozen = gc.get_freeze_count()
    try:
        with uncollected():
            assert not gc.isenabled()
            kept = [[number] for number in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(kept)
    finally:
        gc.unfreeze()
