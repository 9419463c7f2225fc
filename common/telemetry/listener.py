"""Where Prometheus asks: a port of its own, plain HTTP, off unless it is set.

Knows one address. Does not know what is served there (common/telemetry/registry.py). What it serves
is numbers and the names of models, never texts or ids; who may ask is the network's matter.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import ProcessCollector, disable_created_metrics, start_http_server

from common.addresses import listen_address
from common.errors import ConfigError
from common.telemetry.registry import Registry

log = logging.getLogger(__name__)


@contextmanager
def listening(address: str | None, registry: Registry) -> Iterator[int | None]:
    """Answer on "host:port" (port 0 takes any free one; the port is yielded); None: don't.

    Raises ConfigError if the address can't be bound.
    """
    if address is None:
        yield None
        return
    host, port = listen_address("metrics_listen", address)
    disable_created_metrics()  # a second series beside each, which nobody asks for
    try:
        server, thread = start_http_server(port, _every(host), registry.collectors)
    except OSError as cause:
        raise ConfigError(
            f"metrics_listen is {address!r}; that address can't be bound: {cause.strerror}"
        ) from cause
    ProcessCollector(registry=registry.collectors)  # memory, processor time, descriptors
    try:
        log.info("metrics on port %d", server.server_port)
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _every(host: str) -> str:
    """Both families at 0.0.0.0, as gRPC's ports have them, where one socket can take both."""
    if host != "0.0.0.0":
        return host
    try:
        with socket.socket(socket.AF_INET6) as probe:
            alone = probe.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            probe.bind(("::", 0))
    except OSError:  # no IPv6 here
        return host
    return host if alone else "::"
