import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.terminal.files import held_alone, read_text, require_readable
from pipeline.errors import ConfigurationError

HOLD = """
import sys
from pathlib import Path
from pipeline.cli.terminal.files import held_alone
with held_alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_directory_is_held_by_one_process_until_that_ends(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "directory"
    command = [sys.executable, "-c", HOLD, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigurationError, match=f"in use by process {holder.pid}$"), held_alone(directory):
            pass
        holder.kill()
    with held_alone(directory):
        assert (directory / ".lock").read_text() == f"{os.getpid()}\n"
    with held_alone(directory):
        pass


def test_unusable_files_are_reported_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match=f"^--dir: {file} cannot be used: "), held_alone(file):
        pass
    with pytest.raises(ConfigurationError, match=r"^.*none: cannot be read: No such file or directory$"):
        read_text(tmp_path / "none")
    with pytest.raises(ConfigurationError, match=r"file: is not UTF-8 text$"):
        read_text(file)
    with pytest.raises(ConfigurationError, match=r"cannot be read: Is a directory$"):
        require_readable(tmp_path)
    require_readable(file)
