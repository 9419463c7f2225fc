"""What both ends of a connection must agree on, and how the calling end is opened.

Knows message limits, keepalive, reconnecting, balancing, TLS of a client. Does not know who is
called. A ping interval below what the other end permits gets the connection closed ("too many
pings"), so both are here side by side.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import grpc

from common.addresses import check_target, is_loopback
from common.rpc.security.renewing_channel import RenewingChannel
from common.rpc.security.tls import Pems, TlsFiles, WatchedTls, channel_credentials

PING_EVERY_MS = 20_000
PING_TIMEOUT_MS = 10_000
PING_PERMITTED_EVERY_MS = 10_000  # less than PING_EVERY_MS, for clocks that differ

MAX_METADATA_BYTES = 8192

Options = list[tuple[str, int | str]]


@dataclass(frozen=True)
class ClientTls:
    """PEM files: who signed the server's certificate, and who the client says it is."""

    ca: str
    certificate: str | None = None
    key: str | None = None
    name: str | None = None  # that the server's certificate must have; None: the address's host


def shared_options(max_message_bytes: int) -> Options:
    """Both ends ping, so that each notices when the other's machine is gone."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(
    max_message_bytes: int,
    max_metadata_bytes: int = MAX_METADATA_BYTES,
    max_connection_age_s: float | None = None,
) -> Options:
    options: Options = []
    if max_connection_age_s is not None:
        # Clients find servers that came later, since they look up addresses when a connection ends.
        # Streams aren't cut: gRPC's default is to let them end on the old connection.
        options.append(("grpc.max_connection_age_ms", int(max_connection_age_s * 1000)))
    return [
        *options,
        *shared_options(max_message_bytes),
        # Between the two gRPC would refuse at random.
        ("grpc.max_metadata_size", max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", max_metadata_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_PERMITTED_EVERY_MS),
        # Two servers on one port must fail loudly, rather than share the calls at random.
        ("grpc.so_reuseport", 0),
    ]


def channel_options(max_message_bytes: int, service: str | None = None) -> Options:
    # Of a name with several addresses (dns:///name:port is gRPC's default reading of name:port),
    # each call takes the next one that is connected, and healthy where `service` is given.
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if service is not None:
        config["healthCheckConfig"] = {"serviceName": service}
    return [
        *shared_options(max_message_bytes),
        ("grpc.service_config", json.dumps(config)),
        # A name is looked up again when a connection is lost, but by default no sooner than 30 s
        # after the last time: too long for those that wait for a replacement.
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
        # A server that restarts is found again within a second, not after gRPC's two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 500),
        # One channel, one connection: otherwise two channels of a process share one.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def open_channel(
    address: str,
    max_message_bytes: int,
    tls: ClientTls | None = None,
    service: str | None = None,
) -> grpc.aio.Channel:
    """A channel to "host:port", not connected yet.

    Raises ConfigError on files and addresses that won't do.

    `address` may be any name that gRPC knows ("dns:///host:port", "ipv4:host:port,host:port"); of
    several servers behind it, calls go to each in turn. `service`: to those only whose health says
    that this one is served. Certificates are read again when their files change, for calls that
    begin from then on.
    """
    check_target(address)
    options = channel_options(max_message_bytes, service)
    if is_loopback(address):  # whatever http_proxy says
        options.append(("grpc.enable_http_proxy", 0))
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if tls.name is not None:
        options.append(("grpc.ssl_target_name_override", tls.name))

    def secure(pems: Pems) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(address, channel_credentials(pems), options=options)

    return RenewingChannel(secure, WatchedTls(TlsFiles(tls.certificate, tls.key, tls.ca)))
