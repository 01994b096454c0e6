"""The cluster and the registry that a command means when no option names them: environment variables, then a profile.

The sources, in this order: options with addresses, the profile of `--profile`, environment variables with addresses,
the profile of PIPELINE_PROFILE. The first source that names a cluster counts alone, so that `--zookeeper` on the
command line overrides PIPELINE_BOOTSTRAP.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.cli.terminal.settings import read_document
from pipeline.errors import ConfigurationError

BOOTSTRAP_VARIABLE = "PIPELINE_BOOTSTRAP"
ZOOKEEPER_VARIABLE = "PIPELINE_ZOOKEEPER"
REGISTRY_VARIABLE = "PIPELINE_REGISTRY"
PROFILE_VARIABLE = "PIPELINE_PROFILE"
FIELDS = ("bootstrap", "zookeeper", "registry", "client_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Addresses of a cluster and of its registry."""

    name: str
    bootstrap: str | None = None
    zookeeper: str | None = None
    registry: str | None = None
    client_config: str | None = None
    """Path of a file of client settings."""


def choose_profile(name: str | None) -> None:
    """Have this process, and processes that it starts, use a profile; None leaves the choice to PIPELINE_PROFILE.

    Addresses of the environment do not count then: a command must not go to another cluster than the one it names.
    """
    if name is not None:
        os.environ[PROFILE_VARIABLE] = name
        for variable in (BOOTSTRAP_VARIABLE, ZOOKEEPER_VARIABLE, REGISTRY_VARIABLE):
            os.environ.pop(variable, None)


def current_profile() -> Profile | None:
    """Return the profile in use; None if none is chosen. Raises ConfigurationError if it is unknown."""
    name = _variable(PROFILE_VARIABLE)
    if name is None:
        return None
    known = read_profiles()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]}?" if near else "`pipeline profile list` lists all"
        raise ConfigurationError(f"profile {name}", f"is not in {profiles_path()}; {advice}")
    return known[name]


def resolve_cluster(bootstrap: str | None, zookeeper: str | None) -> tuple[str | None, str | None]:
    """Return the brokers or the ZooKeeper that are meant, given the options; exactly one of both is not None.

    Raises ConfigurationError if the first source that names any names both, or if none does.
    """
    if bootstrap is None and zookeeper is None:
        bootstrap, zookeeper = _variable(BOOTSTRAP_VARIABLE), _variable(ZOOKEEPER_VARIABLE)
        if bootstrap is not None and zookeeper is not None:
            raise ConfigurationError(BOOTSTRAP_VARIABLE, f"is set, and so is {ZOOKEEPER_VARIABLE}: unset one of them")
        profile = None if bootstrap or zookeeper else current_profile()
        if profile is not None:
            bootstrap, zookeeper = profile.bootstrap, profile.zookeeper
            if bootstrap is None and zookeeper is None:
                raise ConfigurationError(f"profile {profile.name}", "has neither bootstrap nor zookeeper")
    elif bootstrap is not None and zookeeper is not None:
        raise ConfigurationError("--bootstrap", "give either --bootstrap or --zookeeper, not both")
    if bootstrap is None and zookeeper is None:
        raise ConfigurationError(
            "--bootstrap",
            f"is missing: give --bootstrap HOST:PORT or --zookeeper HOST:PORT, set {BOOTSTRAP_VARIABLE}, "
            "or choose a profile (--profile NAME)",
        )
    return bootstrap, zookeeper


def resolve_registry() -> str | None:
    """Return the registry that the environment or the profile names, for a command without --registry."""
    found = _variable(REGISTRY_VARIABLE)
    if found is None:
        profile = current_profile()
        found = None if profile is None else profile.registry
    return found


def profiles_path() -> Path:
    """Return the path of the file of profiles, which need not exist. Raises ConfigurationError without a home."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    try:
        return Path(base).expanduser() / "pipeline" / "profiles.toml"
    except RuntimeError as error:
        raise ConfigurationError(
            "HOME", "is not set, nor is XDG_CONFIG_HOME: profiles are below one of them"
        ) from error


def read_profiles() -> Mapping[str, Profile]:
    """Return the profiles of the user, by name; none without file. Raises ConfigurationError if the file is wrong."""
    path = profiles_path()
    try:
        if not path.exists():
            return {}
    except OSError as error:
        raise ConfigurationError(str(path), f"cannot be read: {error.strerror}") from error
    return {name: _read_profile(path, name, table) for name, table in read_document(path).items()}


def _read_profile(path: Path, name: str, table: object) -> Profile:
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: {name}", f"is no profile: write [{name}], and below it bootstrap = ...")
    for key, value in table.items():
        if key not in FIELDS:
            raise ConfigurationError(f"{path}: {name}.{key}", f"is unknown: a profile has {', '.join(FIELDS)}")
        if not isinstance(value, str) or not value:
            raise ConfigurationError(f"{path}: {name}.{key}", "must be text in quotes")
    if table.keys() >= {"bootstrap", "zookeeper"}:
        raise ConfigurationError(f"{path}: {name}", "must have either bootstrap or zookeeper, not both")
    return Profile(name=name, **table)


def _variable(name: str) -> str | None:
    """Return an environment variable; None also if it is empty."""
    return os.environ.get(name) or None
