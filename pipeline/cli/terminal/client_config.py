"""Protection of a command's connections: a file of client settings, named by option, environment or profile.

Settings of connections to ZooKeeper (`zookeeper.auth.username`, ...) stand in the same file.

The file is TOML if it ends in `.toml`, else lines `key=value` as librdkafka's tools and Kafka's take them. Secrets
stand in it, or in a place that it names; never on a command line, which other users of a machine see.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.terminal.profiles import current_profile
from pipeline.cli.terminal.settings import read_settings
from pipeline.errors import ConfigurationError
from pipeline.net.http.login import NO_LOGIN, TRUSTSTORE, HttpLogin
from pipeline.net.security.client_security import OPEN_SECURITY, ClientSecurity

if TYPE_CHECKING:
    from pipeline.coordination.zookeeper_security import ZooKeeperSecurity

CLIENT_CONFIG_VARIABLE = "PIPELINE_CLIENT_CONFIG"
OPTION = "--client-config"


def choose_client_config(path: str | None) -> None:
    """Have this process, and processes that it starts, use a file; None leaves the choice to the environment."""
    if path is not None:
        os.environ[CLIENT_CONFIG_VARIABLE] = path


def client_security() -> ClientSecurity:
    """Return the protection that the option, the environment or the profile names. Raises ConfigurationError."""
    path = _chosen_file()
    return OPEN_SECURITY if path is None else read_client_config(path)


def zookeeper_security() -> "ZooKeeperSecurity":
    """Return the protection of connections to ZooKeeper, from the same file. Raises ConfigurationError."""
    from pipeline.coordination.zookeeper_security import ZooKeeperSecurity

    path = _chosen_file()
    if path is None:
        return ZooKeeperSecurity.from_settings({})
    settings = _read(path)
    with _named(path):
        return ZooKeeperSecurity.from_settings({key: settings[key] for key in settings if _is_of_zookeeper(key)})


def http_login() -> HttpLogin:
    """Return the login at HTTP servers, from the same file. Raises ConfigurationError.

    Without authorities of its own, the client trusts those of the connections to brokers.
    """
    path = _chosen_file()
    if path is None:
        return NO_LOGIN
    settings = _read(path)
    own = {key: settings[key] for key in settings if HttpLogin.has(key)}
    if (known := settings.get("ssl.ca.location")) is not None and TRUSTSTORE not in own:
        own = {"schema.registry.ssl.ca.location": known, **own}
    with _named(path):
        return HttpLogin.from_settings(own)


def read_client_config(path: Path) -> ClientSecurity:
    """Return the protection that a file of client settings describes. Raises ConfigurationError."""
    settings = _read(path)
    with _named(path):
        of_brokers = {key: settings[key] for key in settings if not (_is_of_zookeeper(key) or HttpLogin.has(key))}
        return ClientSecurity.from_settings(of_brokers)


def _chosen_file() -> Path | None:
    path = os.environ.get(CLIENT_CONFIG_VARIABLE)
    if not path:
        profile = current_profile()
        path = None if profile is None else profile.client_config
    return None if path is None else Path(path).expanduser()


def _read(path: Path) -> Mapping[str, Any]:
    return read_settings(path) if path.suffix == ".toml" else _read_properties(path)


def _is_of_zookeeper(key: str) -> bool:
    return key.startswith("zookeeper.")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in errors about its settings."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error.key}", error.reason) from error


def _read_properties(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigurationError(OPTION, f"names {path}, which cannot be read: {reason}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            raise ConfigurationError(f"{path}, line {number}", "is not key=value")
        if key.strip() in found:
            raise ConfigurationError(f"{path}: {key.strip()}", "is set twice")
        found[key.strip()] = value.strip()
    return found
