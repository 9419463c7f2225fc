"""Who may call, by a token in the call's metadata: `authorization: Bearer TOKEN`.

Knows the tokens' file, one a line, read again when it changes. Does not know what a token may
do: each may do everything. Only digests are kept, and no token, right or wrong, is sent or logged.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from pathlib import Path

import grpc

from common.errors import ConfigError, Unauthenticated

log = logging.getLogger(__name__)

MIN_LENGTH = 16  # characters; shorter ones can be guessed
HEADER = "authorization"
SCHEME = "Bearer "

Stamp = tuple[int, int, int]  # inode, size, time


class BearerTokens:
    """The tokens of one file. Empty lines, and those that begin with #, hold none."""

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
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as cause:
            # A decoding error's own text would reveal bytes of the file.
            raise ConfigError(f"can't read {self._path}: {type(cause).__name__}") from None
        digests = []
        for number, line in enumerate(lines, start=1):
            token = line.strip()
            if not token or token.startswith("#"):
                continue
            if len(token) < MIN_LENGTH or not token.isascii() or any(map(str.isspace, token)):
                raise ConfigError(
                    f"{self._path}, line {number}: a token is {MIN_LENGTH} or more ASCII "
                    "characters without spaces"
                )
            digests.append(_digest(token))
        return tuple(digests)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
