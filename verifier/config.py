"""The verifier's settings.

Knows: names, defaults, ranges, and which settings need each other. Refuses to know: what is
discovered at start (how many pages fit, the model's own context length), which belongs to the
objects that discover it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.config import check, setting
from common.errors import ConfigError


@dataclass(frozen=True)
class VerifierConfig:
    model: str = setting(
        "qwen2.5-coder-1.5b",
        "Target model: a preset, a directory, a .gguf file or a Hub id.",
    )
    listen: str = setting("127.0.0.1:50051", "Address to listen on; port 0 takes any free one.")
    max_sessions: int = setting(64, "Sessions at once.", minimum=1)
    max_draft_tokens: int = setting(16, "Draft tokens in one proposal.", minimum=0, maximum=1024)
    max_q_entries: int = setting(
        256, "(id, probability) pairs in one row of q.", minimum=1, maximum=65536
    )
    max_context_length: int = setting(
        8192, "Prompt plus output, in tokens; cut to what the model has.", minimum=2
    )
    max_batch_tokens: int = setting(128, "Rows in one forward pass.", minimum=1)
    kv_memory_mib: int | None = setting(
        None, "Memory for keys and values, in MiB; left out: from the free memory.", minimum=1
    )
    page_size: int = setting(16, "Tokens in one page of keys and values.", minimum=1)
    device: str = setting(
        "auto", "Where the model runs: cpu, cuda, cuda:N, or auto, a GPU if torch can use one."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = setting(
        "auto",
        "Of weights, keys and values; auto is bfloat16 on a GPU and float32 on the CPU, which has "
        "no other.",
    )
    gpu_memory_fraction: float = setting(
        0.85,
        "Of the whole GPU's memory, what this process may take; two services that share a GPU get "
        "less than half each. Nothing on the CPU.",
        minimum=0.01,
        maximum=1.0,
    )
    linear: Literal["exact", "fp16", "plain"] = setting(
        "exact",
        "How weights multiply: exact keeps the promise of equal output; on the CPU fp16 is faster "
        "without it, and plain is torch's own. On a GPU both leave long prefills to torch.",
    )
    threads: int = setting(0, "Threads of the model; 0: one for each core.", minimum=0)
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
    )
    idle_timeout_s: float = setting(
        1800.0, "Seconds that a session may go without its next proposal.", minimum=0.1
    )
    grace_s: float = setting(
        20.0, "Seconds that running sessions have to finish after SIGTERM.", minimum=0
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
    )
    max_connection_age_s: float | None = setting(
        None,
        "Seconds after which clients are asked to connect again (and look up addresses anew); "
        "running streams stay. Left out: never.",
        minimum=0.1,
    )
    reflection: bool = setting(
        False, "Serve gRPC reflection, which tells every caller what can be called."
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
        "no tracing. Needs crossdraft[tracing].",
    )
    trace_ratio: float = setting(
        1.0, "Share of the traces begun here that are recorded.", minimum=0, maximum=1
    )

    def __post_init__(self) -> None:
        check(self)
        if self.max_batch_tokens <= self.max_draft_tokens:
            raise ConfigError(
                f"max_batch_tokens is {self.max_batch_tokens}; it must be more than "
                f"max_draft_tokens, which is {self.max_draft_tokens}: a proposal runs in one pass"
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ConfigError("tls_certificate and tls_key are set together or not at all")
        if self.tls_client_ca and not self.tls_certificate:
            raise ConfigError("tls_client_ca needs tls_certificate and tls_key")
