"""Protection of a command's connections: a file of client settings, named by option, environment or profile.

The file is TOML if it ends in `.toml`, else lines `key=value` as librdkafka's tools and Kafka's take them. Secrets
stand in it, or in a place that it names; never on a command line, which other users of a machine see.
"""

import os
from pathlib import Path

from pipeline.cli.terminal.profiles import current_profile
from pipeline.cli.terminal.settings import read_settings
from pipeline.errors import ConfigurationError
from pipeline.net.client_security import OPEN_SECURITY, ClientSecurity

CLIENT_CONFIG_VARIABLE = "PIPELINE_CLIENT_CONFIG"
OPTION = "--client-config"


def choose_client_config(path: str | None) -> None:
    """Have this process, and processes that it starts, use a file; None leaves the choice to the environment."""
    if path is not None:
        os.environ[CLIENT_CONFIG_VARIABLE] = path


def client_security() -> ClientSecurity:
    """Return the protection that the option, the environment or the profile names. Raises ConfigurationError."""
    path = os.environ.get(CLIENT_CONFIG_VARIABLE)
    if not path:
        profile = current_profile()
        path = None if profile is None else profile.client_config
    return OPEN_SECURITY if path is None else read_client_config(Path(path).expanduser())


def read_client_config(path: Path) -> ClientSecurity:
    """Return the protection that a file of client settings describes. Raises ConfigurationError."""
    settings = read_settings(path) if path.suffix == ".toml" else _read_properties(path)
    try:
        return ClientSecurity.from_settings(settings)
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
