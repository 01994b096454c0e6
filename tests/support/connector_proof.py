"""Members of a group as processes, which join, leave, are killed and are paused; and the judge of their journals."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import trio

from tests.support.connector_member import open_results

MORE_S = 60.0
"""Time that a busy machine may take beyond."""
SLOTS = 8
PAUSE_S = (1.5, 3.0)
"""Length of a pause, in session timeouts: beyond the session, and beyond its lease."""
SHORT_PAUSE_S = (0.05, 0.5)
DEADLINE_S = 180


@dataclass(eq=False)
class MemberProcess:
    """A process. `pauses` counts the stops it woke up from."""

    number: int
    process: subprocess.Popen[bytes]
    journal: Path
    log: Path
    is_paused: bool = False
    is_leaving: bool = False
    pauses: int = 0
    was_killed: bool = False

    @property
    def is_busy(self) -> bool:
        return self.is_paused or self.is_leaving

    @property
    def is_ready(self) -> bool:
        return self.journal.exists() and b"ready" in self.journal.read_bytes()

    def leave(self) -> None:
        """Send SIGTERM, once: the second one would end the process at once."""
        if not self.is_leaving:
            self.is_leaving = True
            self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)


@dataclass(eq=False)
class Proof:
    directory: Path
    options: Mapping[str, Any]
    random: Random
    members: list[MemberProcess] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    @property
    def session_s(self) -> float:
        return float(self.options["session_timeout_ms"]) / 1000

    def alive(self) -> list[MemberProcess]:
        return [member for member in self.members if member.process.poll() is None and not member.was_killed]

    def join(self) -> None:
        number = len(self.members)
        journal, log = self.directory / f"journal-{number}", self.directory / f"log-{number}"
        options = {**self.options, "journal": str(journal), "seed": number, "results": str(self.directory)}
        command = [sys.executable, "-m", "tests.support.connector_member", json.dumps(options)]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self.members.append(MemberProcess(number, process, journal, log))

    async def pause(self, member: MemberProcess, length_s: float) -> None:
        member.is_paused = True
        member.signal(signal.SIGSTOP)
        await trio.sleep(length_s)
        member.pauses += 1
        member.signal(signal.SIGCONT)
        member.is_paused = False

    async def disturb(self, duration_s: float, interval_s: tuple[float, float], nursery: trio.Nursery) -> None:
        """Let members join, leave, be killed and be paused for so long, and until each has happened."""
        end = trio.current_time() + duration_s
        with trio.move_on_at(end + MORE_S):
            while trio.current_time() < end or not self.done.keys() >= {"pause", "kill", "leave"}:
                await trio.sleep(self.random.uniform(*interval_s))
                if len(self.alive()) < SLOTS:
                    self.join()
                    self.done["joined"] += 1
                ready = [member for member in self.alive() if member.is_ready and not member.is_busy]
                if len(ready) < 2:
                    continue
                member, action = (
                    self.random.choice(ready),
                    self.random.choice(["leave", "kill", "pause", "pause", "stop"]),
                )
                self.done[action] += 1
                if action == "leave":
                    member.leave()
                elif action == "kill":
                    member.was_killed = True
                    member.signal(signal.SIGKILL)
                elif action == "pause":
                    nursery.start_soon(self.pause, member, self.session_s * self.random.uniform(*PAUSE_S))
                else:
                    nursery.start_soon(self.pause, member, self.session_s * self.random.uniform(*SHORT_PAUSE_S))

    async def end(self) -> None:
        """Have the members leave. Fails if one does not, or had an error."""
        with trio.fail_after(DEADLINE_S):
            for member in self.alive():
                while member.process.poll() is None and not member.is_ready:  # till then a signal kills it
                    await trio.sleep(0.05)
                member.leave()
            for member in self.members:
                while member.process.poll() is None:
                    await trio.sleep(0.05)
        failed = [member for member in self.members if not member.was_killed and member.process.returncode != 0]
        assert not failed, failed[0].log.read_text()[-4000:]

    def stop_all(self) -> None:
        for member in self.members:
            if member.process.poll() is None:
                os.kill(member.process.pid, signal.SIGKILL)
                member.process.wait()


@dataclass(eq=False)
class Verdict:
    handed: int = 0
    claims: int = 0
    late: Counter[int] = field(default_factory=Counter)
    """Records by member that were noted after its lease: in hand when the process was stopped."""
    faults: list[str] = field(default_factory=list)
    seen: dict[int, set[int]] = field(default_factory=dict)


def judge(proof: Proof) -> Verdict:
    """Go through all journals in order of time: a partition is handed out only by the member that claimed it last."""
    verdict, owner, newest = Verdict(), dict[int, int](), dict[int, int]()
    for when, number, kind, words in sorted(_events(proof)):
        partition = int(words[0])
        if kind == "claim":
            verdict.claims += 1
            if int(words[1]) > newest.get(partition, -1):
                owner[partition], newest[partition] = number, int(words[1])
            continue
        offset, left_s = int(words[1]), float(words[2])
        verdict.handed += 1
        verdict.seen.setdefault(partition, set()).add(offset)
        if left_s < 0:
            verdict.late[number] += 1
        elif owner.get(partition) != number:
            fault = f"member {number} was handed {partition}@{offset} at {when}, which {owner.get(partition)} owned"
            verdict.faults.append(f"{fault}; {left_s:.3f} s of its lease were left")
    for member in proof.members:
        if verdict.late[member.number] > member.pauses * 2:  # one for each stream
            verdict.faults.append(f"member {member.number} was handed {verdict.late[member.number]} records too late")
    return verdict


def results(directory: Path, partitions: int) -> dict[int, list[int]]:
    found = {}
    for partition in range(partitions):
        with closing(open_results(directory, partition)) as stored:
            found[partition] = [row[0] for row in stored.execute("SELECT offset FROM results ORDER BY offset")]
    return found


def _events(proof: Proof) -> Iterator[tuple[float, int, str, list[str]]]:
    for member in proof.members:
        if not member.journal.exists():
            continue
        for line in member.journal.read_text().splitlines():
            kind, when, *words = line.split()
            if kind != "ready":
                yield float(when), member.number, kind, words
