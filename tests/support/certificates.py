"""Certificates made on the spot, in files as the services read them."""

from __future__ import annotations

import os
from pathlib import Path

import trustme


class Authority:
    """Signs certificates for 127.0.0.1; files are replaced whole, as those who rotate them do."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ca = trustme.CA()
        self._folder = folder / name
        self._folder.mkdir()
        self.ca = str(self._folder / "ca.pem")
        replace(self.ca, self._ca.cert_pem.bytes())

    def issue(self, certificate: Path, key: Path, *names: str) -> None:
        """A new certificate and key, key first."""
        issued = self._ca.issue_cert(*(names or ("127.0.0.1", "localhost")))
        replace(key, issued.private_key_pem.bytes())
        replace(certificate, b"".join(each.bytes() for each in issued.cert_chain_pems))

    def pair(self, name: str, *names: str) -> tuple[str, str]:
        """Paths of a certificate and its key, both new."""
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        self.issue(certificate, key, *names)
        return str(certificate), str(key)


def replace(path: str | Path, data: bytes) -> None:
    fresh = Path(f"{path}.new")
    fresh.write_bytes(data)
    os.replace(fresh, path)
