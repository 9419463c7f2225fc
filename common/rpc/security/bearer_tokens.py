"""Who may call, by a token in the call's metadata: `authorization: Bearer TOKEN`.

Knows files of tokens: a server's, one a line, read again when it changes, and a client's with its
one. Does not know what a token may do: each may do everything. A server keeps digests only, and no
token, right or wrong, is sent back or logged.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
from pathlib import Path

import grpc

from common.errors import ConfigError, Unauthenticated

log = logging.getLogger(__name__)

MIN_LENGTH = 16  # characters; shorter ones can be guessed
HEADER = "authorization"
SCHEME = "Bearer "
_TOKEN = re.compile(f"[!-~]{{{MIN_LENGTH},}}")  # what metadata can hold, without spaces

Stamp = tuple[int, int, int]  # inode, size, time


def one_token(path: Path) -> str:
    """The one that a client's file holds. Raises ConfigError if it holds none, or several."""
    tokens = _read_tokens(path)
    if len(tokens) != 1:
        raise ConfigError(f"{path} holds {len(tokens) or 'no'} tokens; it must hold one")
    return tokens[0]


class BearerTokens:
    """The tokens of one file."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError if the file can't be read, is empty, or holds what is no token."""
        self._path = Path(path)
        self._seen = self._failed = self._stamp()  # the file that was read, and tried, last
        self._digests = self._read()
        if not self._digests:
            raise ConfigError(f"{path} holds no token; it must hold at least one")

    def check(self, context: grpc.aio.ServicerContext) -> None:
        """Raise Unauthenticated unless the call carries one of the tokens."""
        self._renew()
        given = [value for key, value in context.invocation_metadata() or () if key == HEADER]
        if not given:
            raise Unauthenticated(f"metadata {HEADER} is missing; it must be {SCHEME}TOKEN")
        value = given[0] if isinstance(given[0], str) else ""
        if len(given) > 1 or value[: len(SCHEME)].lower() != SCHEME.lower():
            raise Unauthenticated(f"metadata {HEADER} isn't of the form {SCHEME}TOKEN")
        digest = _digest(value[len(SCHEME) :].strip())
        known = False
        for each in self._digests:  # all of them, so that the time reveals nothing
            known |= hmac.compare_digest(digest, each)
        if not known:
            raise Unauthenticated(f"metadata {HEADER} holds a token that isn't known here")

    def _renew(self) -> None:
        """Read the file if it isn't what was read last; one that can't be read is tried again.

        Not only after a change: what keeps it from being read may be its rights, or its folder's.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            self._failed = stamp
            return
        try:
            self._digests = self._read()
        except ConfigError as cause:
            if stamp != self._failed:
                log.warning("tokens stay as they were: %s", cause)
            self._failed = stamp
        else:
            self._seen = self._failed = stamp
            log.info("%d tokens read from %s", len(self._digests), self._path)

    def _stamp(self) -> Stamp | None:
        """Changes with the file; None where there is none to be seen."""
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> tuple[bytes, ...]:
        return tuple(map(_digest, _read_tokens(self._path)))


def _read_tokens(path: Path) -> list[str]:
    """One a line. Empty lines, and those that begin with #, hold none."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as cause:
        # A decoding error's own text would reveal bytes of the file.
        raise ConfigError(f"can't read {path}: {type(cause).__name__}") from None
    tokens = []
    for number, line in enumerate(lines, start=1):
        token = line.strip()
        if not token or token.startswith("#"):
            continue
        if not _TOKEN.fullmatch(token):
            raise ConfigError(
                f"{path}, line {number}: a token is {MIN_LENGTH} or more ASCII characters "
                "without spaces"
            )
        tokens.append(token)
    return tokens


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
