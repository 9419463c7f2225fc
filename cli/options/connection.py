"""The flags that say where a drafter is, whom to trust, and who we are.

Knows names, and which flags need each other. Does not know what is asked of the drafter.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from cli.options.text import Text
from client.client import Client
from common.rpc.channel import ClientTls
from common.rpc.security.bearer_tokens import one_token

ADDRESS = "127.0.0.1:50052"

_OPTIONS = (
    click.option(
        "--address",
        type=Text(),
        default=ADDRESS,
        envvar="CROSSDRAFT_ADDRESS",
        show_default=True,
        show_envvar=True,
        help="Where the drafter listens.",
    ),
    click.option(
        "--tls-ca", help="PEM file that signed the drafter's certificate; connect over TLS."
    ),
    click.option("--tls-certificate", help="PEM file, for a drafter that asks who is calling."),
    click.option("--tls-key", help="PEM file of that certificate's private key."),
    click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="File that holds the token for a drafter that asks for one; comments begin with #.",
    ),
)


@dataclass(frozen=True)
class Connection:
    """What the flags came to."""

    address: str
    tls: ClientTls | None
    token_file: Path | None

    def client(self) -> Client:
        """Raises ConfigError on files that won't do."""
        token = one_token(self.token_file) if self.token_file is not None else None
        return Client(self.address, self.tls, token=token)


def connection_options(command: Any) -> Any:
    """Decorate a click command whose function takes `connection`."""

    @functools.wraps(command)
    def with_connection(
        address: str,
        tls_ca: str | None,
        tls_certificate: str | None,
        tls_key: str | None,
        token_file: Path | None,
        **others: Any,
    ) -> Any:
        if (tls_certificate is None) != (tls_key is None):
            raise click.UsageError("--tls-certificate and --tls-key are given together")
        if tls_certificate and not tls_ca:
            raise click.UsageError("--tls-certificate needs --tls-ca")
        tls = ClientTls(tls_ca, tls_certificate, tls_key) if tls_ca else None
        return command(connection=Connection(address, tls, token_file), **others)

    for option in reversed(_OPTIONS):
        option(with_connection)
    return with_connection
