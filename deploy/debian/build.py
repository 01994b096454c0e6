"""`make package`: builds the wheel, the source archive, the Debian package and the bill of materials into a directory.

The Debian package holds a virtual environment in /opt/pipeline with every Python package in the version of
constraints.txt, for the machine's own python3. Two builds of one commit give the same bytes: times are those of
SOURCE_DATE_EPOCH, the commit's time unless it is set.
"""

import csv
import gzip
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "deploy" / "debian"
WHEELS = ROOT / ".cache" / "package" / "wheels"
PREFIX = "opt/pipeline"
MAINTAINER = "pipeline <pipeline@localhost>"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
NEXT_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor + 1}"


def run(*command: str | Path) -> str:
    """Run a command and return its output; its errors go to the terminal. Raises CalledProcessError."""
    return subprocess.run(list(map(str, command)), cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def built_from() -> str:
    """Return the commit of the working tree, and whether files of the package differ from it."""
    changed = run("git", "status", "--porcelain", "--", "pipeline", "pyproject.toml", "constraints.txt").strip()
    return run("git", "rev-parse", "HEAD").strip() + ("-dirty" if changed else "")


def build_python_packages(target: Path, version: str) -> Path:
    """Build the source archive, and the wheel from it, out of a clean copy of the sources. Returns the wheel."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, "sources")
        shutil.copytree(ROOT / "pipeline", copy / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "constraints.txt"):
            shutil.copy(ROOT / name, copy)
        (copy / "pipeline" / "COMMIT").write_text(built_from())
        (copy / "MANIFEST.in").write_text("include CHANGELOG.md constraints.txt\n")
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", target, copy)
    normalize_archive(target / f"pipeline-{version}.tar.gz")
    return target / f"pipeline-{version}-py3-none-any.whl"


def normalize_archive(path: Path) -> None:
    """Write a .tar.gz anew: members in order, owned by root, with one time."""
    with tarfile.open(path) as archive:
        members = [(member, archive.extractfile(member)) for member in archive.getmembers()]
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as sorted_archive:
            for member, file in sorted(members, key=lambda pair: pair[0].name):
                member.uid = member.gid = 0
                member.uname = member.gname = "root"
                member.mtime, member.pax_headers = epoch(), {}
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                sorted_archive.addfile(member, file)
    path.write_bytes(gzip.compress(plain.getvalue(), mtime=epoch()))


def epoch() -> int:
    """Return the time of all files, in seconds."""
    return int(os.environ["SOURCE_DATE_EPOCH"])


def install_environment(root: Path, wheel: Path, version: str) -> None:
    """Lay the virtual environment of the package below `root`."""
    WHEELS.mkdir(parents=True, exist_ok=True)
    for older in WHEELS.glob("pipeline-*.whl"):
        older.unlink()
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--constraint", "constraints.txt", "--find-links", WHEELS, "--wheel-dir", WHEELS, wheel)
    environment = root / PREFIX
    packages = environment / "lib" / f"python{PYTHON}" / "site-packages"
    packages.mkdir(parents=True)
    # The name, not the file: pip would note the file's path in the package.
    run(
        *(*pip, "install", "--no-index", "--find-links", WHEELS, "--constraint", "constraints.txt"),
        *("--no-compile", "--target", packages, f"pipeline=={version}"),
    )
    for scripts in ("bin", "share"):
        shutil.rmtree(packages / scripts, ignore_errors=True)
    for record in packages.glob("*.dist-info/RECORD"):
        rows = list(csv.reader(record.read_text().splitlines()))
        with record.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(row for row in rows if not row[0].startswith("../"))
    (environment / "bin").mkdir()
    for name in ("python", "python3"):
        (environment / "bin" / name).symlink_to(f"/usr/bin/python{PYTHON}")
    program = environment / "bin" / "pipeline"
    program.write_text(f"#!/{PREFIX}/bin/python -IXfaulthandler\nfrom pipeline.cli.console import main\n\nmain()\n")
    program.chmod(0o755)
    (environment / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n"
    )
    # One process, in order: bytecode written by several depends on which of them wrote what.
    run(
        *(sys.executable, "-m", "compileall", "-q", "-j", "1", "--invalidation-mode", "unchecked-hash"),
        *("-s", root, "-p", "/", packages),
    )


def write_bill_of_materials(environment: Path, target: Path) -> None:
    """Write every Python package of an environment as CycloneDX JSON."""
    run(
        *(Path(sys.executable).with_name("cyclonedx-py"), "environment", "--output-reproducible", "--pyproject"),
        *(ROOT / "pyproject.toml", "--output-format", "JSON", "--output-file", target, environment / "bin" / "python"),
    )


def debian_changelog(text: str) -> str:
    """Return CHANGELOG.md in Debian's form."""
    entries = []
    for heading in re.finditer(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        version, date, body = heading.groups()
        items = re.sub(r"\n  (?=\S)", "\n    ", re.sub(r"^- ", "  * ", body.strip("\n"), flags=re.MULTILINE))
        day = format_datetime(datetime.fromisoformat(date).replace(tzinfo=UTC))
        entries.append(f"pipeline ({version}) stable; urgency=medium\n\n{items}\n\n -- {MAINTAINER}  {day}\n")
    return "\n".join(entries)


def lay_files(root: Path, version: str) -> None:
    """Lay all below `root` that is not the environment: command, units, documents, control files."""
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/pipeline").symlink_to(f"/{PREFIX}/bin/pipeline")
    shutil.copytree(ROOT / "deploy/systemd", root / "lib/systemd/system")
    documents = root / "usr/share/doc/pipeline"
    documents.mkdir(parents=True)
    shutil.copy(SOURCES / "copyright", documents)
    changelog = debian_changelog((ROOT / "CHANGELOG.md").read_text())
    (documents / "changelog.gz").write_bytes(gzip.compress(changelog.encode(), mtime=0))
    control = root / "DEBIAN"
    control.mkdir()
    for name in ("postinst", "prerm", "postrm"):
        shutil.copy(SOURCES / name, control)
        (control / name).chmod(0o755)
    size_kib = sum(path.lstat().st_size for path in root.rglob("*")) // 1024
    values = {"version": version, "python": PYTHON, "next_python": NEXT_PYTHON, "size_kib": str(size_kib)}
    values |= {"architecture": run("dpkg", "--print-architecture").strip(), "maintainer": MAINTAINER}
    (control / "control").write_text((SOURCES / "control").read_text().format(**values))


def build_debian_package(target: Path, wheel: Path, version: str) -> None:
    """Build the Debian package and the bill of materials."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "root")
        install_environment(root, wheel, version)
        lay_files(root, version)
        bill = target / f"pipeline-{version}.cdx.json"
        write_bill_of_materials(root / PREFIX, bill)
        shutil.copy(bill, root / "usr/share/doc/pipeline/sbom.cdx.json")
        run("chmod", "-R", "u=rwX,go=rX", root)
        # Jars and libraries are compressed already: more effort saves little, and costs minutes.
        run("dpkg-deb", "--root-owner-group", "-Zzstd", "-z6", "--build", root, target)


def main() -> None:
    """Build all packages of the version that pyproject.toml names. The argument is the directory, which is emptied."""
    target = Path(sys.argv[1]).absolute()
    os.environ.setdefault("SOURCE_DATE_EPOCH", run("git", "log", "-1", "--format=%ct").strip())
    os.environ["PYTHONHASHSEED"] = "0"
    os.umask(0o022)
    if "debian" not in platform.freedesktop_os_release().get("ID", "") or sys.base_prefix != "/usr":
        sys.exit(
            "The Debian package is built on Debian, with its own python3 (unset PYTHON, or PYTHON=/usr/bin/python3)."
        )
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    shutil.rmtree(target, ignore_errors=True)
    wheel = build_python_packages(target, version)
    build_debian_package(target, wheel, version)
    for path in sorted(target.iterdir()):
        print(f"{path.name}  {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
