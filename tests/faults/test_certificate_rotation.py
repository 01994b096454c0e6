"""Certificates that are replaced while clients write, read and connect: nobody notices but who looks at them."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from cryptography import x509

from pipeline.broker import protection
from pipeline.cli.secured.certificates import Authority, KeyPair
from tests.support.clients import wait_for
from tests.support.secured_service import SecuredService, secured_service

LOOK_S = 0.05
ROTATIONS = 5
TOPIC = "clicks"


def replace(path: Path, text: str) -> None:
    """As an agent for certificates does: write beside, and rename."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


def serial_seen(broker: SecuredService, context: ssl.SSLContext) -> int:
    host, port = broker.addresses["SSL"].split(":")
    with (
        socket.create_connection((host, int(port)), 30) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        certificate = encrypted.getpeercert(binary_form=True)
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate).serial_number


def serial_of(pair: KeyPair) -> int:
    return x509.load_pem_x509_certificate(pair.certificate.encode()).serial_number


def is_served(broker: SecuredService, context: ssl.SSLContext, pair: KeyPair) -> bool:
    return serial_seen(broker, context) == serial_of(pair)


class Load:
    """A producer and a consumer that live through all, and clients that come and go. `errors`: what they met."""

    def __init__(self, broker: SecuredService, context: ssl.SSLContext) -> None:
        self._broker = broker
        self._context = context
        self._stop = threading.Event()
        self.errors: list[str] = []
        self.written = 0
        self.read = 0
        self.connected = 0

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.written, self.read, self.connected

    def has_gone_on(self, since: tuple[int, int, int]) -> bool:
        return all(now > then for now, then in zip(self.counts, since, strict=True))

    @contextmanager
    def running(self) -> Iterator["Load"]:
        threads = [threading.Thread(target=work) for work in (self._write, self._read, self._connect)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def _settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._broker.addresses["SSL"],
            "security.protocol": "SSL",
            "ssl.ca.location": str(self._broker.ca),
            "error_cb": lambda error: self.errors.append(str(error)),
            "log_level": 0,
        }

    def _write(self) -> None:
        producer = Producer({**self._settings(), "linger.ms": 5})

        def delivered(error: object, _: object) -> None:
            self.written += 1
            if error is not None:
                self.errors.append(str(error))

        while not self._stop.is_set():
            producer.produce(TOPIC, b"x" * 1000, on_delivery=delivered)
            producer.poll(0.001)
        if producer.flush(30):
            self.errors.append("records are left")

    def _read(self) -> None:
        consumer = Consumer({**self._settings(), "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe([TOPIC])
        while not self._stop.is_set():
            for message in consumer.consume(1000, timeout=0.1):
                if message.error():
                    self.errors.append(str(message.error()))
                self.read += 1
        consumer.close()

    def _connect(self) -> None:
        while not self._stop.is_set():
            try:
                serial_seen(self._broker, self._context)
                self.connected += 1
            except OSError as error:
                self.errors.append(f"connecting: {error!r}")
            time.sleep(0.002)


def test_clients_do_not_notice_new_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(protection, "LOOK_S", LOOK_S)
    with secured_service(tmp_path) as broker:
        authority, keystore = Authority("second"), tmp_path / "broker.pem"
        replace(broker.ca, broker.ca.read_text() + authority.certificate)
        context = ssl.create_default_context(cafile=str(broker.ca))
        with Load(broker, context).running() as load:
            wait_for("records", lambda: load.read > 0)
            for number in range(ROTATIONS):
                pair = authority.issue(f"broker-{number}", ["127.0.0.1"])
                replace(keystore, pair.key + pair.certificate)
                wait_for("the new certificate", partial(is_served, broker, context, pair))
                before = load.counts
                # what is broken changes nothing: half a file, and the key of another certificate
                broken = pair.key[:100] if number % 2 else authority.issue("other").key + pair.certificate
                replace(keystore, broken)
                wait_for("the refusal of it", partial(has_refused, caplog, number + 1))
                assert is_served(broker, context, pair)
                wait_for("all to go on", partial(load.has_gone_on, before))
    assert load.errors == []


def has_refused(caplog: pytest.LogCaptureFixture, count: int) -> bool:
    """True if so many broken files were told of."""
    told = ("certificate" in record.getMessage() and record.levelname == "ERROR" for record in caplog.records)
    return sum(told) >= count
