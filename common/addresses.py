"""Addresses: where a port listens ("host:port"), and what a channel is opened to (a gRPC target).

Knows how both are written, and which targets never leave this machine. Does not know who listens
and who calls.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote

from common.errors import ConfigError

MAX_PORT = 65_535
_SCHEME = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock):(?://[^/]*/)?(.*)", re.I | re.S)
_LOCAL_SCHEMES = ("unix", "unix-abstract", "vsock")
_LOCAL_NAMES = ("localhost", "ip6-localhost", "ip6-loopback")
_HOST_PORT = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?", re.S)  # [v6]:port or host:port


def listen_address(setting: str, address: str) -> tuple[str, int]:
    """Host, without brackets, and port of "host:port". Raises ConfigError, naming the setting."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port) <= MAX_PORT):
        raise ConfigError(
            f"{setting} is {address!r}; it must be host:port, with a port from 0 to {MAX_PORT}"
        )
    return host.strip("[]"), int(port)


def check_target(target: str) -> None:
    """Raise ConfigError for an empty target, and for a port that gRPC would take modulo 65536."""
    scheme, places = _split(target)
    local = scheme in _LOCAL_SCHEMES
    if not all(places if local else map(_host, places)):
        raise ConfigError(f"the address is {target!r}; it must be host:port, or a gRPC target")
    if local:
        return
    for place in places:
        port = re.search(r":(-?\d+)$", place)
        if port and not _is_bare(place) and not 0 <= int(port[1]) <= MAX_PORT:
            raise ConfigError(
                f"the address is {target!r}, with port {port[1]}; it must be from 0 to {MAX_PORT}"
            )


def is_loopback(target: str) -> bool:
    """Whether a gRPC target, however it is written, has a place on this machine."""
    scheme, places = _split(target)
    return scheme in _LOCAL_SCHEMES or any(_is_local(_host(place)) for place in places)


def _split(target: str) -> tuple[str, list[str]]:
    """The scheme, "dns" where there is none, and each host:port, or the path."""
    found = _SCHEME.fullmatch(target)
    scheme, rest = (found[1].lower(), found[2]) if found else ("dns", target)
    rest = unquote(rest)
    return scheme, [rest] if scheme in _LOCAL_SCHEMES else rest.split(",")


def _host(place: str) -> str:
    found = None if _is_bare(place) else _HOST_PORT.fullmatch(place)
    return (found[1] if found else place).strip("[]").partition("%")[0]  # % begins a zone


def _is_bare(place: str) -> bool:
    """Whether it is an IPv6 address without a port."""
    return place.count(":") > 1 and "[" not in place


def _is_local(host: str) -> bool:
    name = host.lower().removesuffix(".")
    if name in _LOCAL_NAMES or name.endswith(".localhost"):  # RFC 6761
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    # A connection to the unspecified address is one to this machine.
    return address.is_loopback or address.is_unspecified
