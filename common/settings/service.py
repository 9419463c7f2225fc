"""Settings that both services have: limits, health, TLS, logs, metrics, traces.

Knows the settings of a service's shell. Does not know models and what is served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.errors import ConfigError
from common.settings.numbers import MAX_COUNT, MAX_S
from common.settings.sources import check, setting


@dataclass(frozen=True, kw_only=True)  # so that a service's own settings may come first
class ServiceConfig:
    """Raises ConfigError, naming the setting, its value and its limit."""

    max_message_bytes: int = setting(
        16 * 2**20, "Size of one gRPC message, both ways.", minimum=2 * 2**20, maximum=2**31 - 1
    )
    max_metadata_bytes: int = setting(
        8192, "Size of one call's metadata.", minimum=1024, maximum=2**20
    )
    max_streams_per_peer: int | None = setting(
        None,
        "Calls that one address may have in progress; left out: four times max_sessions.",
        minimum=1,
        maximum=MAX_COUNT,
    )
    health_listen: str | None = setting(
        None,
        "Another address, without TLS, that answers health alone: for probes that know no TLS, as "
        "Kubernetes' own.",
    )
    stall_s: float = setting(
        60.0,
        "Seconds that one step of the model may take before health's `liveness` says no.",
        minimum=0.01,
        maximum=MAX_S,
    )
    max_connection_age_s: float | None = setting(
        None,
        "Seconds after which clients are asked to connect again (and look up addresses anew); "
        "running streams stay. Left out: never.",
        minimum=0.1,
        maximum=MAX_S,
    )
    reflection: bool = setting(
        False, "Serve gRPC reflection, which lists the methods for every caller."
    )
    tls_certificate: str | None = setting(
        None, "PEM file; with --tls-key, serve over TLS. Read again when it changes, as all are."
    )
    tls_key: str | None = setting(None, "PEM file of the certificate's private key.")
    tls_client_ca: str | None = setting(
        None, "PEM file; clients must then show a certificate that it signed."
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        "What to log.",
    )
    log_format: Literal["plain", "json"] = setting(
        "plain", "How log lines look: for people, or one JSON object each."
    )
    metrics_listen: str | None = setting(
        None, "Address where Prometheus may ask for metrics; left out: nowhere."
    )
    trace_endpoint: str | None = setting(
        None,
        "OpenTelemetry collector (OTLP over gRPC, http://host:4317) that takes traces; left out: "
        "no tracing. Needs the extra `tracing`.",
    )
    trace_ratio: float = setting(
        1.0, "Share of the traces begun here that are recorded.", minimum=0, maximum=1
    )

    def __post_init__(self) -> None:
        check(self)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError(
                "tls_certificate and tls_key are set together or not at all; "
                f"{'tls_key' if self.tls_key else 'tls_certificate'} is set alone"
            )
        if self.tls_client_ca and not self.tls_certificate:
            raise ConfigError("tls_client_ca needs tls_certificate and tls_key")
