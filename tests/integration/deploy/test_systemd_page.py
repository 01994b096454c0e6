"""docs/deploy/systemd.md, followed to the letter on a bare Debian."""

import textwrap
from pathlib import Path

import pytest

from tests.support.debian import DebianRoot, booted_root, debian_root
from tests.support.packages import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # with the build of the package

PACKAGE = "pipeline_0.0.0_amd64.deb"


def test_the_page_leads_from_a_bare_debian_to_a_running_datacenter(debian: DebianRoot, tmp_path: Path) -> None:
    page = (ROOT / "docs/deploy/systemd.md").read_text().split("\n## ")[0]
    lines = [line for line in page.splitlines() if line.startswith("    ") or not line]
    commands = textwrap.dedent("\n".join(lines))
    with debian_root(tmp_path / "root", debian) as root:
        (root.path / "root/commands").write_text(f"set -eux\ncd /root\n{commands}")
        (root.path / "root" / PACKAGE).hardlink_to(root.path / "package.deb")
        with booted_root(root, "east-1") as host:
            said = host.run("bash", "/root/commands", timeout_s=500)
            assert said.endswith("+ pipeline consume visits\nhello\n")
            assert host.run("systemctl", "--failed", "--no-legend") == ""
