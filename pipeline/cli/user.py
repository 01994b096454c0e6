"""`pipeline user`: users that log in by SCRAM, of our brokers and of Apache Kafka."""

from enum import StrEnum
from functools import partial
from typing import Annotated

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import TIMEOUT_S, Bootstrap, Json, ZooKeeper, connected, randomness
from pipeline.cli.terminal.passwords import PasswordFile, PasswordVariable, read_new_password, require_one_form
from pipeline.client.admin.scram_users import (
    UserScramCredential,
    alter_user_scram_credentials,
    describe_user_scram_credentials,
)
from pipeline.coordination.scram_znodes import MAX_ITERATIONS, MIN_ITERATIONS, ScramHash
from pipeline.credentials import Secret
from pipeline.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Users that log in with a password (SCRAM).")
SALT_BYTES = 32
PRINCIPAL_PREFIX = "User:"


class Mechanism(StrEnum):
    """Mechanisms with a password that the cluster keeps."""

    SCRAM_SHA_256 = ScramHash.SHA_256.value
    SCRAM_SHA_512 = ScramHash.SHA_512.value


User = Annotated[str, typer.Argument(metavar="USER", help="The user's name, without User: before it.")]
Mechanisms = Annotated[
    list[Mechanism] | None,
    typer.Option("--mechanism", help="SCRAM mechanism of the credential; may be repeated. Default: both."),
]


@app.command()
def create(
    user: User,
    mechanism: Mechanisms = None,
    iterations: Annotated[
        int, typer.Option(min=MIN_ITERATIONS, max=MAX_ITERATIONS, help="Rounds of hashing, which slow down guessing.")
    ] = MIN_ITERATIONS,
    replace: Annotated[
        bool, typer.Option("--replace", help="Give a user that exists a new password, instead of an error.")
    ] = False,
    password_file: PasswordFile = None,
    password_env: PasswordVariable = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Create a user with a password, which is asked for, or read from a file or the environment.

    The password is hashed here, and never sent. A user may do nothing yet: see `pipeline acl add`. Exit code 1 if the
    user exists.
    """
    if user.startswith(PRINCIPAL_PREFIX):
        raise ConfigurationError("USER", f"is a name alone, without {PRINCIPAL_PREFIX}, which only ACLs have before it")
    require_one_form("USER", user)
    kinds = _kinds(mechanism)
    password = read_new_password(password_file, password_env)

    async def run() -> None:
        async with connected(bootstrap, zookeeper, "pipeline-user") as cluster:
            if not replace and await describe_user_scram_credentials(cluster, [user], timeout_s=TIMEOUT_S):
                output.exit_with(f"user {user} exists: --replace sets a new password")
            wanted = [_credential(user, kind, password, iterations) for kind in kinds]
            await alter_user_scram_credentials(cluster, wanted, timeout_s=TIMEOUT_S)

    trio.run(run)
    mechanisms = " and ".join(kind.value for kind in kinds)
    output.say(f"User {output.printable(user)} logs in with {mechanisms}.")


@app.command("list")
def list_(
    users: Annotated[list[str] | None, typer.Argument(metavar="[USER]...", help="Users. Default: all.")] = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """List the users that have a password, by mechanism. Exit code 1 if a named user has none.

    Users of PLAIN are in the brokers' settings, users of certificates and tokens elsewhere: this list has neither.
    """

    async def run() -> dict[str, dict[ScramHash, int]]:
        async with connected(bootstrap, zookeeper, "pipeline-user") as cluster:
            return await describe_user_scram_credentials(cluster, users or (), timeout_s=TIMEOUT_S)

    found = trio.run(run)
    rows = [
        {"user": user, "mechanism": kind.value, "iterations": count}
        for user, kinds in found.items()
        for kind, count in kinds.items()
    ]
    if json:
        output.print_json({"users": rows})
    else:
        output.say(output.table(["USER", "MECHANISM", "ITERATIONS"], [list(row.values()) for row in rows]))
    if missing := [user for user in users or () if user not in found]:
        output.exit_with(f"no user {output.enumeration(missing, 5)} has a password")


@app.command()
def delete(
    user: User,
    mechanism: Mechanisms = None,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
) -> None:
    """Remove a user's password: no new connection logs in with it. Exit code 1 if the user has none.

    Open connections stay until they close, or have to log in again (the brokers' connections.max.reauth.ms). ACLs of
    the user stay: see `pipeline acl remove`.
    """
    trio.run(partial(_delete, user, _kinds(mechanism), bootstrap, zookeeper))
    output.say(f"Deleted user {output.printable(user)}." if mechanism is None else
               f"User {output.printable(user)} no longer logs in with {' and '.join(mechanism)}.")  # fmt: skip


async def _delete(user: str, kinds: list[ScramHash], bootstrap: str | None, zookeeper: str | None) -> None:
    async with connected(bootstrap, zookeeper, "pipeline-user") as cluster:
        found = await describe_user_scram_credentials(cluster, [user], timeout_s=TIMEOUT_S)
        present = [kind for kind in kinds if kind in found.get(user, {})]
        if not present:
            output.exit_with(f"user {user} has no password of {' or '.join(kind.value for kind in kinds)}")
        await alter_user_scram_credentials(cluster, (), [(user, kind) for kind in present], timeout_s=TIMEOUT_S)


def _kinds(mechanisms: list[Mechanism] | None) -> list[ScramHash]:
    return [ScramHash(name) for name in dict.fromkeys(mechanisms)] if mechanisms else list(ScramHash)


def _credential(user: str, kind: ScramHash, password: Secret, iterations: int) -> UserScramCredential:
    salt = randomness().randbytes(SALT_BYTES)
    return UserScramCredential(user=user, kind=kind, iterations=iterations, password=password, salt=salt)
