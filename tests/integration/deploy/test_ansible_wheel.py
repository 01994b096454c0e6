"""The playbooks with a wheel, which makes by hand what the Debian package holds."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.ansible_hosts import NETWORK, ansible_hosts
from tests.support.ansible_site import SITE_NAMES, AnsibleSite, succeed
from tests.support.debian import debian_root, why_not
from tests.support.packages import DIST, ROOT, debian_package

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
WHEELS = ROOT / ".cache/package/wheels"
"""All that the wheel needs, as `make package` has fetched it."""
PIP = "[global]\nno-index = true\nfind-links = http://{address}/\ntrusted-host = {host}\n"


@contextmanager
def index_of_wheels() -> Iterator[str]:
    """Serve the wheels to hosts; the value is the address."""
    with ThreadingHTTPServer((f"{NETWORK}.1", 0), partial(SimpleHTTPRequestHandler, directory=str(WHEELS))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{NETWORK}.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_host_takes_a_wheel_whether_or_not_a_run_was_cut_off(tmp_path: Path) -> None:
    debian_package()  # the wheel, and those that it needs
    (wheel,) = DIST.glob("*.whl")
    with debian_root(tmp_path / "base") as base:
        base.run("apt-get", "update")
        base.run("apt-get", "install", "--yes", "--no-install-recommends", "python3-venv")
        with ansible_hosts(tmp_path, base, SITE_NAMES[:1]) as hosts, index_of_wheels() as address:
            site = AnsibleSite(tmp_path, hosts)
            site.render(names=SITE_NAMES[:1])
            root = hosts.hosts["east-1"].path
            (root / "etc/pip.conf").write_text(PIP.format(address=address, host=f"{NETWORK}.1"))
            succeed(site.play("site.yml", pipeline_package=wheel))
            again = succeed(site.play("site.yml", pipeline_package=wheel))
            assert again.count("changed") == {"east-1": 0}, again.output
            assert site.run("pipeline", "--version").split()[1] == wheel.name.split("-")[1]

            site.run("systemctl", "stop", "pipeline.target")  # as if the run had ended after pip
            shutil.rmtree(root / "usr/local/lib/systemd")
            (root / "usr/bin/pipeline").unlink()
            succeed(site.play("site.yml", pipeline_package=wheel))
            assert hosts.start_of("east-1", "pipeline-broker@1.service") != "0"
