import socket

from pipeline.processes import FIRST_PORT, PORT_COUNT, free_port


def test_free_ports_are_free_and_not_given_twice():
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    for port in ports:
        assert FIRST_PORT <= port < FIRST_PORT + PORT_COUNT
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_a_port_in_use_is_passed_over():
    with socket.socket() as listener:
        taken = (free_port() - FIRST_PORT + 1) % PORT_COUNT + FIRST_PORT
        listener.bind(("127.0.0.1", taken))
        listener.listen()
        assert taken not in {free_port() for _ in range(3)}
