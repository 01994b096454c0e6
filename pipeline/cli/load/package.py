"""`pipeline load package`: this installation as an archive, which Spark unpacks for its executors."""

import io
import re
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Final

import typer

from pipeline.cli.terminal import output

_UNUSED: Final = ("pyspark/jars/", "pyspark/examples/", "pyspark/data/", "pyspark/licenses/", "../")
"""Beginnings of files that a Python worker of Spark does not need, and of scripts outside of the packages."""


def package(
    file: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="Archive to write.")],
) -> None:
    """Pack this installation for the executors of a Spark cluster.

    The archive holds the program, the Python packages that it needs, and a link to this Python, which the executors'
    machines must have in the same place.
    """
    with output.progress(f"Packing {file}", total=None):
        try:
            with tarfile.open(file, "w:gz", compresslevel=1) as archive:
                _add_python(archive)
                for path, name in _files():
                    archive.add(path, f"{_site_packages()}/{name}", recursive=False)
        except OSError as error:
            output.exit_with(f"{file} cannot be written: {error.strerror}")
    output.say(f"{file}: {file.stat().st_size / 1e6:.0f} MB.")


def _site_packages() -> str:
    return f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def _add_python(archive: tarfile.TarFile) -> None:
    """Make the archive a virtual environment of this Python."""
    base = Path(sys.executable).resolve()
    link = tarfile.TarInfo("bin/python")
    link.type, link.linkname = tarfile.SYMTYPE, str(base)
    archive.addfile(link)
    text = f"home = {base.parent}\ninclude-system-site-packages = false\n".encode()
    described = tarfile.TarInfo("pyvenv.cfg")
    described.size = len(text)
    archive.addfile(described, io.BytesIO(text))


def _files() -> Iterator[tuple[Path, str]]:
    """Each file of the program and of the packages that it needs, and its name below `site-packages`."""
    import pipeline

    (program,) = pipeline.__path__
    for path in sorted(Path(program).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path, f"pipeline/{path.relative_to(program)}"
    for needed in _needed("pipeline"):
        for listed in needed.files or ():
            path = Path(str(listed.locate()))
            if not str(listed).startswith(_UNUSED) and "__pycache__" not in listed.parts and path.is_file():
                yield path, str(listed)


def _needed(program: str) -> list[Distribution]:
    """Return the installed packages that the program needs, directly or not, without those of its extras."""
    found: dict[str, Distribution] = {}
    waiting = [program]
    while waiting:
        for requirement in distribution(waiting.pop()).requires or ():
            matched = re.match(r"[A-Za-z0-9._-]+", requirement)
            if matched is None or re.search(r";.*\bextra\b", requirement):
                continue
            name = re.sub(r"[-_.]+", "-", matched[0]).lower()
            if name not in found:
                try:
                    found[name] = distribution(name)
                except PackageNotFoundError:  # needed on other systems only
                    continue
                waiting.append(name)
    return list(found.values())
