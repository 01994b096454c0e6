"""A real KDC of Kerberos (MIT) on this machine, of the system or of Debian's packages below `.cache` (install.sh)."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import create_connection

from pipeline.processes import free_port

REALM = "PIPELINE.TEST"
DEADLINE_S = 60.0
CLOCK_SKEW_S = 2
"""Time for which a ticket is taken behind its end; five minutes by default, so that no test would see an end."""
UNPACKED = Path(__file__).parents[2] / ".cache/kerberos"


@dataclass(frozen=True, slots=True)
class Kdc:
    """A running KDC. `directory` holds its database, `krb5.conf` and keytabs."""

    directory: Path

    @property
    def settings(self) -> Path:
        """`krb5.conf` for clients and servers."""
        return self.directory / "krb5.conf"

    def keytab(self, *principals: str, ticket_life_s: int | None = None) -> Path:
        """Create principals with random keys, and return the path of a keytab with them, in this order.

        `ticket_life_s`: longest life of their tickets, by default that of the realm. A keytab that exists is kept.
        """
        path = self.directory / f"{principals[0].replace('/', '-')}.keytab"
        if path.exists():
            return path
        life = "" if ticket_life_s is None else f'-maxlife "{ticket_life_s} seconds"'
        for principal in principals:
            _run(self.directory, "kadmin.local", "-q", f"addprinc -randkey {life} {principal}")
            _run(self.directory, "kadmin.local", "-q", f"ktadd -k {path} -norandkey {principal}")
        return path

    def logins(self, principal: str) -> int:
        """How often the KDC has given this principal a ticket for tickets."""
        lines = (self.directory / "requests.log").read_text().splitlines()
        return sum("AS_REQ" in line and "ISSUE: " in line and f" {principal}@" in line for line in lines)


@contextmanager
def running_kdc(directory: Path) -> Iterator[Kdc]:
    """Start a KDC with an empty realm, and stop it at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    modules = next(UNPACKED.rglob("krb5/plugins/kdb"), None)
    (directory / "krb5.conf").write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n rdns = false\n"
        f" dns_canonicalize_hostname = false\n udp_preference_limit = 1\n clockskew = {CLOCK_SKEW_S}\n"
        f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
    )
    (directory / "kdc.conf").write_text(
        f'[kdcdefaults]\n kdc_listen = ""\n kdc_tcp_listen = 127.0.0.1:{port}\n'
        f"[realms]\n {REALM} = {{\n  database_name = {directory}/principal\n  key_stash_file = {directory}/stash\n"
        f"  acl_file = {directory}/acl\n }}\n[logging]\n kdc = FILE:{directory}/requests.log\n"
        + (f"[dbmodules]\n db_module_dir = {modules}\n" if modules else "")
    )
    _run(directory, "kdb5_util", "create", "-s", "-P", "master")
    with (directory / "kdc.log").open("wb") as log:
        process = subprocess.Popen(
            [_program("krb5kdc"), "-n"], env=_environment(directory), stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        _wait_until_reached(process, port, directory)
        yield Kdc(directory)
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _wait_until_reached(process: "subprocess.Popen[bytes]", port: int, directory: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with suppress(OSError), create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the KDC does not serve:\n{(directory / 'kdc.log').read_text()}")


def _program(name: str) -> str:
    unpacked = UNPACKED / "usr/sbin" / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        raise RuntimeError(f"{name} is missing: run tests/support/install.sh")
    return found


def _environment(directory: Path) -> Mapping[str, str]:
    libraries = {str(path.parent) for path in UNPACKED.rglob("libkdb5.so*")}
    return {
        **os.environ,
        "KRB5_CONFIG": str(directory / "krb5.conf"),
        "KRB5_KDC_PROFILE": str(directory / "kdc.conf"),
        **({"LD_LIBRARY_PATH": ":".join(sorted(libraries))} if libraries else {}),
    }


def _run(directory: Path, program: str, *arguments: str) -> None:
    done = subprocess.run(
        [_program(program), *arguments],
        env=_environment(directory),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode != 0 or "ktadd: " in done.stderr:
        raise RuntimeError(f"{program} {arguments}: {done.stdout}{done.stderr}")
