"""Ports of servers that are started later: nobody else on the machine gets them meanwhile."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import PipelineError
from pipeline.processes import free_port, is_port_free

PROCESSES = 4
PORTS_EACH = 200
TAKE_PORTS = f"""
from pipeline.processes import free_port
print(*(free_port() for _ in range({PORTS_EACH})), flush=True)
input()
"""

WAIT_WITHOUT_DESCRIPTORS = """
import resource, sys, trio
from pathlib import Path
from pipeline.processes import start_process
async def main():
    child = start_process("sleep", ["sleep", "600"], log=Path(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child.wait)
            await trio.sleep(0)
            child.kill()
    print(await child.wait())
trio.run(main)
"""


def test_programs_that_look_for_ports_at_the_same_time_get_different_ones() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", TAKE_PORTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    try:
        lines = [process.stdout.readline() for process in processes if process.stdout]
    finally:
        for process in processes:
            process.communicate("\n")
    ports = [int(port) for line in lines for port in line.split()]
    assert len(ports) == len(set(ports)) == PROCESSES * PORTS_EACH


def test_a_server_listens_on_its_port_comes_back_to_it_and_keeps_a_second_one_out() -> None:
    port = free_port()
    assert is_port_free(port)
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)):
            assert not is_port_free(port)
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", port))
            socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_a_free_port_is_given_to_no_connection_and_no_listener_on_any_port() -> None:
    ports = {free_port() for _ in range(200)}
    with socket.create_server(("127.0.0.1", 0), backlog=2000) as server:
        opened = []
        try:
            for _ in range(500):
                opened.append(socket.create_connection(server.getsockname()))
                opened.append(socket.create_server(("127.0.0.1", 0)))
                opened.append(socket.create_server(("", 0)))
            taken = {found.getsockname()[1] for found in opened}
        finally:
            for found in opened:
                found.close()
    assert ports.isdisjoint(taken)


def test_an_address_of_another_machine_has_no_free_port() -> None:
    with pytest.raises(PipelineError, match=r"no free port on 192\.0\.2\.1"):
        free_port("192.0.2.1")


def test_the_end_of_a_child_is_waited_for_without_a_descriptor_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAIT_WITHOUT_DESCRIPTORS, str(tmp_path / "log")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=400)
    assert done.stdout == "-9\n", done.stderr
