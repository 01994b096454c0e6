"""Machines made of Debian's packages: a bare root file system, in which commands run, or which boots its systemd.

The base is a minimal Debian with systemd, Python, Java and sshd, made once by debootstrap in .cache/debian. A
`DebianRoot` is a layer above it (overlayfs): changes stay in the layer's directory and end with the `with` block that
mounted it. `booted_root` starts the root's own systemd as process 1 of namespaces of its own, with cgroups of its own
(version 1 or hybrid); when the block ends, all its processes are gone. Needs root.
"""

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache"
SUITE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "procps", "iproute2", "openssh-server", "ca-certificates"),
    *("python3", "openjdk-17-jre-headless"),
)
CGROUPS = Path("/sys/fs/cgroup")
BOOT_TIMEOUT_S = 90.0
COMMAND_TIMEOUT_S = 240.0

BOOT = """
root=$1 controllers=$2
mount --make-rprivate /
mount -t proc proc $root/proc
mount -t sysfs -o ro sysfs $root/sys
mount -t tmpfs -o mode=755 tmpfs $root/sys/fs/cgroup
for each in $controllers; do
    mkdir $root/sys/fs/cgroup/$each
    case $each in
        systemd) mount -t cgroup -o none,name=systemd cgroup $root/sys/fs/cgroup/$each ;;
        unified) mount -t cgroup2 cgroup2 $root/sys/fs/cgroup/$each ;;
        *) mount -t cgroup -o $each cgroup $root/sys/fs/cgroup/$each ;;
    esac
done
mount -t tmpfs -o mode=755 tmpfs $root/dev
for each in null zero full random urandom tty; do touch $root/dev/$each; mount --bind /dev/$each $root/dev/$each; done
mkdir $root/dev/pts $root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts $root/dev/pts
ln -s pts/ptmx $root/dev/ptmx
mount -t tmpfs tmpfs $root/dev/shm
mount -t tmpfs -o mode=755 tmpfs $root/run
mount -t tmpfs tmpfs $root/tmp
ip link set lo up
cd $root
pivot_root . mnt
umount -l /mnt
exec env -i container=namespaces TERM=linux PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=journal
"""


def why_not() -> str | None:
    """Return why this machine cannot run roots, None if it can."""
    if os.geteuid() != 0:
        return "a root file system needs root"
    if not (CGROUPS / "systemd").is_dir():
        return "systemd as process 1 is started with cgroups of version 1 (hybrid), which this machine does not have"
    return None


@dataclass(frozen=True, slots=True)
class DebianRoot:
    """A mounted root file system."""

    path: Path
    layers: tuple[Path, ...]
    """Directories that it consists of, the upper one first."""

    def run(self, *command: str | Path, check: bool = True, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run a command in it, as root, with the network of this machine; return what it printed."""
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={self.path}/proc"]
        return _run([*enter, "chroot", self.path, *command], check=check, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class BootedRoot:
    """A root whose systemd runs."""

    path: Path
    pid: int
    """Of its process 1, as this machine counts."""

    def run(self, *command: str | Path, check: bool = True, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run a command in it, as root; return what it printed. Raises CalledProcessError with `check`."""
        enter = ["nsenter", f"--target={self.pid}", "--all", f"--wd={self.path}"]
        return _run([*enter, *command], check=check, timeout_s=timeout_s)

    def wait_for(self, *command: str, printed: str, timeout_s: float = 60.0) -> str:
        """Run a command until its output has a text; return the output. Raises TimeoutError with the last output."""
        deadline_s = time.monotonic() + timeout_s
        while printed not in (output := self.run(*command, check=False)):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{' '.join(command)} never printed {printed!r}, last: {output}")
            time.sleep(0.2)
        return output


def _run(command: list[str | Path], *, check: bool, timeout_s: float) -> str:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        [str(each) for each in command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if check and done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, done.args, done.stdout)
        error.add_note(done.stdout)
        raise error
    return done.stdout


def base() -> Path:
    """Return the base file system, which nobody may change. Makes it if it is missing: a minute, and the network."""
    directory = CACHE / f"debian-{SUITE}"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "debian.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}  # of dpkg and chroot
            unpacked = CACHE / "debootstrap"
            found = shutil.which("debootstrap", path=environment["PATH"])
            program = found or unpacked / "usr/sbin/debootstrap"
            new = CACHE / "debian.new"
            shutil.rmtree(new, ignore_errors=True)
            if found is None:
                environment["DEBOOTSTRAP_DIR"] = str(unpacked / "usr/share/debootstrap")
            command = [program, "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, new]
            subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
            new.rename(directory)
    return directory


@contextmanager
def debian_root(directory: Path, above: DebianRoot | None = None) -> Iterator[DebianRoot]:
    """Mount a root whose changes go into `directory`, above the base, or above another root that no longer changes."""
    lower = (base(),) if above is None else above.layers
    changes, work, mounted = (directory / name for name in ("changes", "work", "root"))
    for each in (changes, work, mounted):
        each.mkdir(parents=True)
    options = f"lowerdir={':'.join(map(str, lower))},upperdir={changes},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", mounted], check=True)
    try:
        yield DebianRoot(mounted, (changes, *lower))
    finally:
        subprocess.run(["umount", "--lazy", mounted], check=True)
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def booted_root(root: DebianRoot, name: str, *, network: str | None = None) -> Iterator[BootedRoot]:
    """Boot a root's systemd, and wait until it has started its units; end all its processes afterwards.

    `name`: host name, unique among the roots of this machine. `network`: a network namespace that `ip netns` has
    made; without one the root has a network of its own, with the loopback interface alone.
    """
    (root.path / "etc/hostname").write_text(f"{name}\n")
    hosts = root.path / "etc/hosts"
    known = hosts.read_text() if hosts.exists() else "127.0.0.1 localhost\n"
    if name not in known.split():  # as Debian's installer writes it: Java looks up the name of its host
        hosts.write_text(f"{known}127.0.1.1 {name}\n")
    enter = ["unshare", "--net"] if network is None else ["nsenter", f"--net=/run/netns/{network}"]
    with ExitStack() as stack:
        controllers = stack.enter_context(_cgroups(f"{name}-{os.getpid()}"))
        joined = "".join(f"echo $$ > {path}/cgroup.procs\n" for path in controllers.values())
        unshare = "unshare --cgroup --pid --fork --kill-child --mount --uts --ipc"
        script = f'set -eu\n{joined}exec {" ".join(enter)} {unshare} sh -euc "$3" sh "$1" "$2"\n'
        process = subprocess.Popen(
            ["sh", "-c", script, "sh", root.path, " ".join(controllers), BOOT],
            env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},  # pivot_root
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        yield _wait_until_booted(process, root)


def _wait_until_booted(process: "subprocess.Popen[bytes]", root: DebianRoot) -> BootedRoot:
    """Wait until systemd answers that the boot has ended, whether or not a unit has failed."""
    deadline_s = time.monotonic() + BOOT_TIMEOUT_S
    state = ""
    while time.monotonic() < deadline_s and process.poll() is None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children:
            booted = BootedRoot(root.path, int(children[0]))
            if Path(f"/proc/{booted.pid}/comm").read_text().strip() == "systemd":
                state = booted.run("systemctl", "is-system-running", check=False).strip()
                if state in ("running", "degraded"):
                    return booted
        time.sleep(0.1)
    raise TimeoutError(f"the root did not boot within {BOOT_TIMEOUT_S:g} s: {state or 'systemd did not start'}")


@contextmanager
def _cgroups(name: str) -> Iterator[dict[str, Path]]:
    """Make a cgroup in each hierarchy of this machine, and remove all of them with those below."""
    hierarchies = [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]
    made = {path.name: path / name for path in hierarchies if path.name != "cpuset"}  # a new one there takes nobody
    for path in made.values():
        path.mkdir()
    try:
        yield made
    finally:
        for path in made.values():
            for below, _, _ in os.walk(path, topdown=False):
                _remove_cgroup(Path(below))


def _remove_cgroup(path: Path) -> None:
    """Remove a cgroup as soon as its last process is gone."""
    deadline_s = time.monotonic() + 10
    while True:
        try:
            return path.rmdir()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
