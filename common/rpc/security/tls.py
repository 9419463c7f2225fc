"""Certificates and keys in PEM files, read again when they change, so that rotating them needs no
restart.

Knows when files have changed, and whether what they hold belongs together. Does not know who
connects to whom (common/rpc/server.py, common/rpc/channel.py).

Whoever rotates files writes one after the other. Until what is there fits again, what was read
last stays in use.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from common.errors import ConfigError

log = logging.getLogger(__name__)

Stamps = tuple[tuple[int, int, int], ...]  # of each file: inode, size, time of the last change


@dataclass(frozen=True)
class TlsFiles:
    """Paths of PEM files. Certificate (with its chain) and key are given together or not at all."""

    certificate: str | None = None
    key: str | None = None
    ca: str | None = None  # who signed the other end's certificate


@dataclass(frozen=True)
class Pems:
    """What the files contain."""

    certificate: bytes | None
    key: bytes | None
    ca: bytes | None


class WatchedTls:
    """`current` is what is in use; `renewed` looks whether the files hold something else."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises ConfigError, naming the file, if they can't be read or don't belong together."""
        self._files = files
        self._seen = _stamps(files)
        self._warned = ""  # about what, since the files could last be read
        self.current = _read(files)

    def renewed(self) -> Pems | None:
        """What the files hold, if it isn't `current`. Costs a stat per file otherwise."""
        try:
            stamps = _stamps(self._files)
            if stamps == self._seen:
                return None
            pems = _read(self._files)
            if _stamps(self._files) != stamps:
                return None  # written to just now; the next call sees the rest
        except ConfigError as cause:
            if str(cause) != self._warned:  # every call comes by here
                log.warning("certificates stay as they were: %s", cause)
                self._warned = str(cause)
            return None
        self._warned = ""
        self._seen = stamps
        if pems == self.current:
            return None
        log.info("certificates have changed: %s", self._files)
        self.current = pems
        return pems


def server_credentials(watched: WatchedTls) -> grpc.ServerCredentials:
    """Each handshake is made with the newest files; open connections aren't touched."""

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        pems = watched.renewed()
        return _configuration(pems) if pems else None

    current = watched.current
    return grpc.dynamic_ssl_server_credentials(
        _configuration(current), renewed, require_client_authentication=current.ca is not None
    )


def channel_credentials(pems: Pems) -> grpc.ChannelCredentials:
    """For one channel; gRPC's client has no way to change them later."""
    return grpc.ssl_channel_credentials(
        root_certificates=pems.ca, private_key=pems.key, certificate_chain=pems.certificate
    )


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(pems.key, pems.certificate)], root_certificates=pems.ca
    )


def _stamps(files: TlsFiles) -> Stamps:
    found = []
    for path in (files.certificate, files.key, files.ca):
        if path is not None:
            try:
                status = os.stat(path)
            except OSError as cause:
                raise ConfigError(f"can't read {path}: {cause.strerror}") from cause
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def _read(files: TlsFiles) -> Pems:
    pems = Pems(*(_pem(path) for path in (files.certificate, files.key, files.ca)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if files.certificate is not None:
            # The password is for an encrypted key, which is refused instead of asked for.
            context.load_cert_chain(files.certificate, files.key, password="")
    except (ssl.SSLError, OSError) as cause:
        raise ConfigError(
            f"{files.certificate} and {files.key} aren't a certificate and its key: {cause}"
        ) from cause
    try:
        if files.ca is not None:
            context.load_verify_locations(files.ca)
    except (ssl.SSLError, OSError) as cause:
        raise ConfigError(f"{files.ca} holds no certificates: {cause}") from cause
    return pems


def _pem(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as cause:
        raise ConfigError(f"can't read {path}: {cause.strerror}") from cause
