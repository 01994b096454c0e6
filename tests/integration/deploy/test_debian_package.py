"""The Debian package on a bare Debian: installed, used, upgraded, removed, purged. And built again, the same bytes."""

import gzip
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.version import VERSION
from tests.support.debian import DebianRoot, debian_root
from tests.support.packages import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # with the build of the package

CLUSTER = """
set -eu
cd /tmp
pipeline local up --port 19092 --dir /tmp/data > started &
for _ in $(seq 600); do if [ -s started ]; then break; fi; sleep 0.1; done
pipeline topic create greetings -b 127.0.0.1:19092
printf 'hello\\nworld\\n' | pipeline produce greetings -b 127.0.0.1:19092
pipeline consume greetings -b 127.0.0.1:19092
kill %1
wait
"""

OLDER = """
mkdir -p /older/DEBIAN /older/opt/pipeline
touch /older/opt/pipeline/older
cp /var/lib/dpkg/info/pipeline.p* /older/DEBIAN/
cd /older/DEBIAN
for each in pipeline.*; do mv $each ${each#pipeline.}; done
dpkg-query -s pipeline | sed '/^Status/d; s/^Version: .*/Version: 0.0.9/' > control
dpkg-deb --build /older /older.deb
"""
"""Builds a package of an older version, with the same scripts."""


@pytest.fixture
def root(installed: DebianRoot, tmp_path: Path) -> Iterator[DebianRoot]:
    with debian_root(tmp_path / "root", installed) as own:
        yield own


def test_an_installed_package_runs_a_cluster_as_a_user_of_its_own(root: DebianRoot) -> None:
    assert re.match(rf"pipeline {VERSION} \(commit [0-9a-f]{{12}}, Python 3", root.run("pipeline", "--version"))
    assert "hello\nworld\n" in root.run("runuser", "-u", "pipeline", "--", "bash", "-c", CLUSTER)
    assert root.run("sh", "-c", "cd /etc/pipeline && stat -c '%A %U %G' . secrets /var/lib/pipeline").splitlines() == [
        "drwxr-xr-x root root",
        "drwxr-x--- root pipeline",
        "drwxr-x--- pipeline pipeline",
    ]
    assert root.run("dpkg", "--verify", "pipeline") == ""


def test_the_package_tells_its_changes_and_what_it_is_made_of(root: DebianRoot) -> None:
    documents = root.path / "usr/share/doc/pipeline"
    changelog = gzip.decompress((documents / "changelog.gz").read_bytes()).decode()
    assert changelog.startswith(f"pipeline ({VERSION}) ")
    assert root.run("dpkg-query", "-W", "-f", "${Version}", "pipeline") == VERSION
    bill = json.loads((documents / "sbom.cdx.json").read_text())
    packages = root.path / "opt/pipeline/lib/python3.11/site-packages"
    installed = {path.name.split("-")[0].replace("_", "-").lower() for path in packages.glob("*.dist-info")}
    assert {part["name"].replace("_", "-").lower() for part in bill["components"]} | {"pipeline"} == installed | {
        "pipeline"
    }
    assert bill["bomFormat"] == "CycloneDX"


def test_an_upgrade_keeps_settings_and_records(root: DebianRoot) -> None:
    (root.path / "etc/pipeline/broker-1.toml").write_text("broker.id = 1\n")
    (root.path / "var/lib/pipeline/records").write_text("kept")
    root.run("sh", "-euc", OLDER)
    root.run("dpkg", "--force-downgrade", "--install", "/older.deb")
    assert root.run("dpkg-query", "-W", "-f", "${Version}", "pipeline") == "0.0.9"
    root.run("dpkg", "--force-unsafe-io", "--install", "/package.deb")
    assert root.run("dpkg-query", "-W", "-f", "${Version}", "pipeline") == VERSION
    assert (root.path / "etc/pipeline/broker-1.toml").read_text() == "broker.id = 1\n"
    assert (root.path / "var/lib/pipeline/records").read_text() == "kept"
    assert root.run("pipeline", "--version").startswith(f"pipeline {VERSION} ")
    assert not (root.path / "opt/pipeline/older").exists()


def test_a_removal_keeps_settings_and_a_purge_keeps_records_alone(root: DebianRoot) -> None:
    (root.path / "etc/pipeline/broker-1.toml").write_text("broker.id = 1\n")
    (root.path / "var/lib/pipeline/records").write_text("kept")
    root.run("pipeline", "topic", "--help")  # leaves what a run leaves
    root.run("dpkg", "--remove", "pipeline")
    assert (root.path / "etc/pipeline/broker-1.toml").exists()
    assert not (root.path / "opt/pipeline").exists()
    assert not (root.path / "usr/bin/pipeline").is_symlink()
    said = root.run("dpkg", "--purge", "pipeline")
    assert "/var/lib/pipeline is kept" in said
    assert "the user pipeline is kept" in said
    assert not (root.path / "etc/pipeline").exists()
    assert (root.path / "var/lib/pipeline/records").read_text() == "kept"
    assert "pipeline" in root.run("getent", "passwd", "pipeline")


def test_a_purge_without_records_leaves_the_user_alone(root: DebianRoot) -> None:
    """Files on other disks may be its own: the next new user must not get its number, and with it the files."""
    root.run("dpkg", "--purge", "pipeline")
    left = root.run(
        "find", "/etc", "/opt", "/usr", "/lib/systemd", "/var/lib/pipeline", "-name", "*pipeline*", check=False
    )
    assert [line for line in left.splitlines() if "No such file" not in line] == []
    assert root.run("getent", "passwd", "pipeline") != ""


def test_a_user_and_a_group_that_are_there_are_taken_and_kept(root: DebianRoot) -> None:
    root.run("dpkg", "--purge", "pipeline")
    root.run("userdel", "pipeline")
    root.run("sh", "-euc", "groupadd others; useradd --create-home --gid others --shell /bin/bash pipeline")
    root.run("dpkg", "--force-unsafe-io", "--install", "/package.deb")
    assert root.run("stat", "-c", "%U %G", "/var/lib/pipeline") == "pipeline pipeline\n"
    root.run("dpkg", "--purge", "pipeline")
    assert root.run("getent", "passwd", "pipeline").endswith(":/home/pipeline:/bin/bash\n")
    root.run("sh", "-euc", "userdel pipeline; getent group pipeline")
    root.run("dpkg", "--force-unsafe-io", "--install", "/package.deb")
    assert root.run("stat", "-c", "%U %G", "/var/lib/pipeline") == "pipeline pipeline\n"


def test_a_removal_disables_units_of_the_package_alone(root: DebianRoot) -> None:
    wanted = root.path / "etc/systemd/system/multi-user.target.wants"
    wanted.mkdir(parents=True, exist_ok=True)
    (wanted / "pipeline-others.service").symlink_to("/etc/systemd/system/pipeline-others.service")
    root.run("systemctl", "--root=/", "enable", "pipeline.target", "pipeline-broker@1", "pipeline-load@lake.timer")
    root.run("dpkg", "--remove", "pipeline")
    left = root.run("find", "/etc/systemd/system", "-name", "pipeline*", "-type", "l").splitlines()
    assert left == ["/etc/systemd/system/multi-user.target.wants/pipeline-others.service"]


def test_data_on_a_disk_that_is_not_mounted_is_said_and_mended(root: DebianRoot) -> None:
    root.run("dpkg", "--purge", "pipeline")
    (root.path / "var/lib/pipeline").symlink_to("/mnt/data")
    said = root.run("dpkg", "--force-unsafe-io", "--install", "/package.deb", check=False)
    assert "/var/lib/pipeline leads to a folder that is missing" in said
    (root.path / "mnt/data").mkdir()
    root.run("dpkg", "--configure", "-a")
    assert root.run("stat", "-c", "%U %a", "/mnt/data") == "pipeline 750\n"


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    sums = []
    for directory in (tmp_path / "first", tmp_path / "second"):
        subprocess.run([ROOT / "deploy/debian/build.sh", directory], check=True, stdout=subprocess.DEVNULL)
        sums.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()})
    assert {Path(name).suffix for name in sums[0]} == {".whl", ".gz", ".deb", ".json"}
    assert sums[0] == sums[1]
