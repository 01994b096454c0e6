"""The playbooks on three hosts that boot systemd: a cluster is installed, changed, restarted, upgraded under load."""

import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.ansible_hosts import address_of, ansible_hosts
from tests.support.ansible_site import (
    SITE_BOOTSTRAP,
    SITE_BROKERS,
    SITE_NAMES,
    SITE_ZOOKEEPERS,
    AnsibleSite,
    producing,
    succeed,
)
from tests.support.debian import debian_root, why_not
from tests.support.packages import PackageTree, debian_package

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
VERSION, BROKEN_VERSION, NEXT_VERSION = "97.0", "98.0", "99.0"
POLL_S = 0.2
"""Far less than a server is away for."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[AnsibleSite]:
    with debian_root(tmp_path / "base") as base:
        base.run("apt-get", "update")
        base.run("apt-get", "install", "--yes", "--no-install-recommends", "python3-apt")
        (base.path / "etc/dpkg/dpkg.cfg.d/fast").write_text("force-unsafe-io\n")
        with ansible_hosts(tmp_path, base, SITE_NAMES) as hosts:
            yield AnsibleSite(tmp_path, hosts)


def test_a_cluster_is_installed_changed_restarted_and_upgraded(site: Any, tmp_path: Any) -> None:
    files = PackageTree(debian_package(), tmp_path)
    package, later = files.build(VERSION), files.build(NEXT_VERSION)
    files.break_brokers()
    broken = files.build(BROKEN_VERSION)
    files.empty()
    foreign = files.build(BROKEN_VERSION, "arm64")
    site.render()
    succeed(site.play("site.yml", pipeline_package=package))
    assert site.run("systemctl", "is-enabled", "pipeline.target", SITE_BROKERS[0]).split() == ["enabled", "enabled"]
    asked = ("systemctl", "is-active", "pipeline-load@lake.timer")
    assert site.hosts.hosts["east-3"].run(*asked) == "active\n"
    again = succeed(site.play("site.yml", pipeline_package=package))
    assert again.count("changed") == dict.fromkeys(SITE_NAMES, 0), again.output

    site.run("pipeline", "topic", "create", "clicks", "--replication-factor", "3", "--bootstrap", SITE_BOOTSTRAP)
    with producing(tmp_path):
        change_settings(site)
        go_on_where_a_run_was_cut_off(site)
        stop_at_the_first_that_does_not_come_back(site)
        mend_settings_by_which_a_broker_waits(site)
        restart_all(site)
        stop_at_the_first_that_cannot_be_reached(site)
        spare_zookeeper(site)
        refuse_what_is_no_package(site, foreign, package, tmp_path)
        go_back_from_a_version_that_does_not_start(site, package, broken)
        upgrade(site, later)


def change_settings(site: AnsibleSite) -> None:
    before = site.starts()
    site.render("log.retention.hours = 100\n")
    changed = succeed(site.play("site.yml"))
    assert changed.count("changed") == dict.fromkeys(SITE_NAMES, 2), changed.output  # a file, and a restart
    assert not set(site.starts()) & set(before)
    assert site.retention() == {"100"}


def go_on_where_a_run_was_cut_off(site: AnsibleSite) -> None:
    """Files came that no service has read yet; clocks say that they were there before the services started."""
    east_2, east_3 = site.hosts.hosts["east-2"], site.hosts.hosts["east-3"]
    drop_in = east_2.path / "etc/systemd/system/pipeline-broker@2.service.d/render.conf"
    rendered = drop_in.read_text()
    drop_in.write_text(f"{rendered}Environment=FORMER=yes\n")
    east_2.run("systemctl", "daemon-reload")
    east_2.run("systemctl", "restart", SITE_BROKERS[1])
    assert "FORMER=yes" in east_2.run("cat", f"/proc/{site.starts()[1]}/environ")
    before = site.starts()
    site.render("log.retention.hours = 101\n")
    settings = east_3.path / "etc/pipeline/broker-3.toml"
    settings.write_text(site.rendered("east-3", "etc/pipeline/broker-3.toml"))
    drop_in.write_text(rendered)  # and systemd was not told
    for each in (settings, drop_in):
        os.utime(each, (0, 0))
    succeed(site.play("site.yml", limit="east-3"))
    first, second, third = site.starts()
    assert (first, second) == (before[0], before[1])
    assert third != before[2]
    assert site.retention() == {"100", "101"}
    succeed(site.play("site.yml"))
    assert site.retention() == {"101"}
    assert site.starts()[2] == third
    assert "FORMER=yes" not in east_2.run("cat", f"/proc/{site.starts()[1]}/environ")


def stop_at_the_first_that_does_not_come_back(site: AnsibleSite) -> None:
    before = site.starts()
    settings = site.hosts.hosts["east-2"].path / "etc/pipeline/broker-2.toml"
    text = settings.read_text()
    settings.write_text(text + "no.such.setting = 1\n")
    stopped = site.play("rolling-restart.yml")
    assert stopped.code != 0
    first, second, third = site.starts()
    assert first not in {before[0], "0"}
    assert (second, third) == ("0", before[2])
    settings.write_text(text)
    succeed(site.play("site.yml"))
    assert site.starts()[2] == before[2]


def mend_settings_by_which_a_broker_waits(site: AnsibleSite) -> None:
    """It would wait without end for a ZooKeeper that is not there."""
    before, east_2 = site.starts(), site.hosts.hosts["east-2"]
    settings = east_2.path / "etc/pipeline/broker-2.toml"
    connect = re.compile('^"zookeeper.connect" = .*', re.MULTILINE)
    wrong, count = connect.subn('"zookeeper.connect" = "127.0.0.1:1"', settings.read_text())
    assert count == 1
    settings.write_text(wrong)
    stopped = site.play("rolling-restart.yml", limit="east-2", pipeline_timeout_s=60)
    assert stopped.code != 0
    state = ("systemctl", "show", "--property=ActiveState", "--value", SITE_BROKERS[1])
    assert east_2.run(*state) == "activating\n"
    succeed(site.play("site.yml"))
    assert east_2.run(*state) == "active\n"
    assert [site.starts()[place] == before[place] for place in (0, 2)] == [True, True]


def restart_all(site: AnsibleSite) -> None:
    """By two runs at once: never are two brokers away."""
    before = site.starts()
    most_away = 0
    with ThreadPoolExecutor() as threads:
        runs = [threads.submit(site.play, "rolling-restart.yml") for _ in range(2)]
        while not all(run.done() for run in runs):
            most_away = max(most_away, sum(state != "active" for state in site.states()))
            time.sleep(POLL_S)  # the runs need the processors
        for run in runs:
            succeed(run.result())
    assert most_away == 1
    assert not set(site.starts()) & {*before, "0"}
    assert site.run("cat", "/run/pipeline-turn") == ""


def stop_at_the_first_that_cannot_be_reached(site: AnsibleSite) -> None:
    before, east_2 = site.starts(), site.hosts.hosts["east-2"]
    east_2.run("systemctl", "stop", "ssh")
    east_2.run("pkill", "sshd", check=False)  # connections that are open
    assert site.play("rolling-restart.yml").code != 0
    first, second, third = site.starts()
    assert first not in {before[0], "0"}
    assert (second, third) == (before[1], before[2])
    east_2.run("systemctl", "start", "ssh")


def spare_zookeeper(site: AnsibleSite) -> None:
    """While a server of the ensemble is away, no other one is stopped, though all replicas are in sync."""
    east_3 = site.hosts.hosts["east-3"]
    before = [*site.starts(SITE_ZOOKEEPERS)[:2], *site.starts()]
    east_3.run("systemctl", "stop", SITE_ZOOKEEPERS[2])
    refused = site.play("rolling-restart.yml", limit="east-1", pipeline_timeout_s=10)
    assert refused.code != 0
    assert f"{address_of(3)}:2181" in refused.output
    assert [*site.starts(SITE_ZOOKEEPERS)[:2], *site.starts()] == before
    east_3.run("systemctl", "start", SITE_ZOOKEEPERS[2])


def refuse_what_is_no_package(site: AnsibleSite, foreign: Path, package: Path, directory: Path) -> None:
    """Nothing is touched by a package of another architecture, or by half of one."""
    before = site.starts()
    damaged = directory / f"pipeline_{BROKEN_VERSION}_all.deb"
    damaged.write_bytes(package.read_bytes()[:20_000_000])
    for each in (foreign, damaged):
        assert site.play("upgrade.yml", pipeline_package=each).code != 0
    assert site.starts() == before
    assert site.versions() == [VERSION] * 3


def go_back_from_a_version_that_does_not_start(site: AnsibleSite, package: Path, broken: Path) -> None:
    before = site.starts()
    assert site.play("upgrade.yml", pipeline_package=broken).code != 0
    assert site.versions() == [BROKEN_VERSION, VERSION, VERSION]
    assert site.starts()[1:] == before[1:]
    assert site.play("upgrade.yml", pipeline_package=broken).code != 0  # and not "all is well" at the second run
    assert site.versions() == [BROKEN_VERSION, VERSION, VERSION]
    succeed(site.play("upgrade.yml", pipeline_package=package))
    assert site.versions() == [VERSION] * 3
    assert site.starts()[1:] == before[1:]


def upgrade(site: AnsibleSite, later: Path) -> None:
    before = site.starts()
    refused = site.play("site.yml", pipeline_package=later)
    assert refused.code != 0
    assert "run upgrade.yml" in refused.output
    killed = site.play("upgrade.yml", kill_at="TASK [pipeline : Install the Debian package]", pipeline_package=later)
    assert killed.code == -9
    assert site.starts() == before
    succeed(site.play("upgrade.yml", pipeline_package=later))
    assert site.versions() == [NEXT_VERSION] * 3
    assert not set(site.starts()) & set(before)
    again = succeed(site.play("upgrade.yml", pipeline_package=later))
    assert again.count("changed") == dict.fromkeys(SITE_NAMES, 0), again.output
