"""Every metric, named once: its name, its kind, what it says, and which values its labels can have.

Knows names. Refuses to know who counts (common/telemetry/registry.py makes collectors of these) and
who listens. docs/observability.md has the same table, and a test compares the two.

Labels are bounded: each lists its values here, and whatever else comes counts as "other". No label
is called service, pod, job, instance or namespace, which Prometheus adds itself. Two services in
Prometheus are distinguished by those, or by the engine: "target" at a verifier, "draft" at a drafter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from common.sampling.rules import AcceptanceRule
from common.types import BridgeMode, FinishReason

OTHER = "other"  # a label's value where the real one isn't listed
NONE = "none"  # a label's value where there is nothing to report

Labels = Mapping[str, tuple[str, ...]]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_COUNTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """One family."""

    kind: Kind
    name: str  # as Prometheus shows it, a counter's _total included
    help: str
    labels: Labels  # each label's possible values; empty where they are only known later
    buckets: tuple[float, ...] = ()  # a histogram's


def _counter(name: str, help: str, **labels: tuple[str, ...]) -> Metric:
    return Metric("counter", name, help, labels)


def _gauge(name: str, help: str, **labels: tuple[str, ...]) -> Metric:
    return Metric("gauge", name, help, labels)


def _seconds(name: str, help: str, **labels: tuple[str, ...]) -> Metric:
    return Metric("histogram", name, help, labels, _SECONDS)


def _sizes(name: str, help: str, **labels: tuple[str, ...]) -> Metric:
    return Metric("histogram", name, help, labels, _COUNTS)


# What labels can say.
MAX_POSITION = 16  # draft tokens further back are counted together
ENGINE = ("target", "draft")
STATE = ("used", "free")
RULE = tuple(rule.label for rule in AcceptanceRule)
FINISH_REASON = tuple(reason.value for reason in FinishReason)
BRIDGE = (BridgeMode.TEXT.value, BridgeMode.INTERSECTION.value, NONE)
POSITION = (*(str(place + 1) for place in range(MAX_POSITION)), OTHER)
PHASE = ("prefill", "round")
VERIFIER_STAGE = ("queue", "forward", "accept")
DRAFTER_STAGE = (
    "draft_model",
    "draft_queue",
    "bridge",
    "verifier_queue",
    "verifier_forward",
    "verifier_accept",
    "network",
    "detokenize",
)
METHOD = ("Generate", "GetPair", "Verify", "VerifyOnce", "GetModel", "GetTokenizer", OTHER)

# --- both services ------------------------------------------------------------------------------

BUILD_INFO = _gauge(
    "crossdraft_build_info", "Always 1; what runs here.", engine=ENGINE, version=(), model=()
)
GRPC_CALLS = _counter(
    "crossdraft_grpc_calls_total",
    "Calls that ended, by status; error names the cause (docs/protocol.md), none where all was "
    "well.",
    method=METHOD,
    status=(),
    error=(),
)
GRPC_CALLS_NOW = _gauge("crossdraft_grpc_calls_in_progress", "Calls in progress.", method=METHOD)
GRPC_PEERS = _gauge(
    "crossdraft_grpc_peers",
    "Connections with a call of this service in progress: drafters at a verifier, clients at a "
    "drafter.",
)
PASS_SECONDS = _seconds(
    "crossdraft_engine_pass_seconds", "Forward passes of the model.", engine=ENGINE
)
BATCH_ROWS = _sizes(
    "crossdraft_engine_batch_rows", "Rows (tokens) in a forward pass.", engine=ENGINE
)
BATCH_SESSIONS = _sizes(
    "crossdraft_engine_batch_sessions", "Sessions that shared a forward pass.", engine=ENGINE
)
FAILED_PASSES = _counter(
    "crossdraft_engine_failed_passes_total",
    "Forward passes that raised: the target's end their sessions, the draft model's leave them at "
    "k = 0.",
    engine=ENGINE,
)
EAGER_PASSES = _counter(
    "crossdraft_engine_unrecorded_passes_total",
    "Forward passes on a GPU that were larger than any recorded step, so that each of their "
    "launches was called.",
    engine=ENGINE,
)
WAITING = _gauge(
    "crossdraft_engine_waiting_sessions",
    "Sessions with work that isn't in a finished pass yet.",
    engine=ENGINE,
)
PAGES = _gauge("crossdraft_engine_pages", "Pages of keys and values.", engine=ENGINE, state=STATE)
PREEMPTIONS = _counter(
    "crossdraft_engine_preemptions_total",
    "Sessions that gave up their pages to others and have their tokens read again later.",
    engine=ENGINE,
)

# --- the verifier -------------------------------------------------------------------------------

SESSIONS = _gauge("crossdraft_verifier_sessions", "Sessions open, VerifyOnce included.")
SESSION_LIMIT = _gauge(
    "crossdraft_verifier_session_limit", "Sessions that may be open (max_sessions)."
)
PREFILLS = _counter("crossdraft_verifier_prefills_total", "First rounds (round 0).", rule=RULE)
PREFILL_TOKENS = _counter(
    "crossdraft_verifier_prompt_tokens_total",
    "Prompt tokens of sessions whose prefill is done; a resumed session's output counts again.",
)
ROUNDS = _counter(
    "crossdraft_verifier_rounds_total", "Rounds decided, prefill excluded.", rule=RULE
)
COMMITTED = _counter(
    "crossdraft_verifier_committed_tokens_total",
    "Tokens committed in those rounds, next token included: divided by rounds, the mean acceptance length.",
    rule=RULE,
)
DRAFT_TOKENS = _counter(
    "crossdraft_verifier_draft_tokens_total",
    "Draft tokens that were proposed in those rounds.",
    rule=RULE,
)
ACCEPTED = _counter(
    "crossdraft_verifier_accepted_tokens_total",
    "Draft tokens that were accepted in those rounds.",
    rule=RULE,
)
VERIFIER_SECONDS = _seconds(
    "crossdraft_verifier_room_seconds",
    "Where a round's time went at the verifier: waiting for a pass, in passes, in the decision.",
    stage=VERIFIER_STAGE,
    phase=PHASE,
)

# --- the drafter --------------------------------------------------------------------------------

STREAMS = _gauge("crossdraft_drafter_streams", "Generate streams in progress.")
STREAM_LIMIT = _gauge("crossdraft_drafter_stream_limit", "Streams that may be (max_sessions).")
ANSWERS = _counter(
    "crossdraft_drafter_answers_total",
    "Streams that came to their summary.",
    finish_reason=FINISH_REASON,
)
EMPTY_ANSWERS = _counter(
    "crossdraft_drafter_empty_answers_total", "Those of them without any text."
)
PROMPT_TOKENS = _counter(
    "crossdraft_drafter_prompt_tokens_total", "Target tokens in their prompts."
)
OUTPUT_TOKENS = _counter(
    "crossdraft_drafter_output_tokens_total", "Target tokens in their outputs."
)
DRAFTED_ROUNDS = _counter(
    "crossdraft_drafter_rounds_total",
    "Rounds, prefill excluded, by how the draft crossed; none: the draft model had no part.",
    bridge=BRIDGE,
)
DRAFTED_COMMITTED = _counter(
    "crossdraft_drafter_committed_tokens_total",
    "Tokens committed in those rounds, next token included: divided by rounds, the mean acceptance length.",
    bridge=BRIDGE,
)
DRAFTED_BY_POSITION = _counter(
    "crossdraft_drafter_drafted_by_position_total",
    "Rounds that proposed a draft token at this position, first is 1.",
    bridge=BRIDGE,
    position=POSITION,
)
ACCEPTED_BY_POSITION = _counter(
    "crossdraft_drafter_accepted_by_position_total",
    "Rounds that accepted the draft token at this position.",
    bridge=BRIDGE,
    position=POSITION,
)
DRAFTER_SECONDS = _counter(
    "crossdraft_drafter_room_seconds_total",
    "Where rounds' time went, as the summaries' stage_s has it.",
    stage=DRAFTER_STAGE,
)
WIRE_BYTES = _counter(
    "crossdraft_drafter_wire_bytes_total", "Bytes of Verify messages, both ways, prefill included."
)
FIRST_TOKEN_SECONDS = _seconds(
    "crossdraft_drafter_first_token_seconds", "From a request to its first token."
)
ROUND_SECONDS = _seconds(
    "crossdraft_drafter_round_seconds", "From one verdict to the next, drafting included."
)
DRAFT_HEALTHY = _gauge(
    "crossdraft_drafter_draft_healthy",
    "0 if the last pass of the draft model raised, or a draft took longer than `draft_timeout_s`: "
    "sessions run at k = 0.",
)
UNDRAFTED_ANSWERS = _counter(
    "crossdraft_drafter_undrafted_answers_total",
    "Answers that asked for drafts and ended without: the draft model failed or took too long, "
    "or its context was full.",
)
PAUSE_SECONDS = _seconds(
    "crossdraft_drafter_verifier_pause_seconds",
    "Verifiers lost in mid-session: from asking one to the verdict of the one that took over.",
)

RUN_AHEAD = _counter(
    "crossdraft_drafter_run_ahead_total",
    "Verdicts that met drafts made ahead of them: the next draft was ready (hit), begun (part), or "
    "something else was written or asked for (miss). Nothing where `run_ahead` is off.",
    output=("hit", "part", "miss"),
)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def of_service(service: Literal["verifier", "drafter"]) -> tuple[Metric, ...]:
    """What one of the two shows: its own, and what both have."""
    other = "crossdraft_drafter_" if service == "verifier" else "crossdraft_verifier_"
    return tuple(metric for metric in ALL if not metric.name.startswith(other))
