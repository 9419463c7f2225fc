"""Every metric, named once: its name, its kind, what it says, and which values its labels can have.

Knows names. Does not know who counts (common/telemetry/registry.py makes collectors of these) and
who listens. docs/observability.md has the same table, and a test compares the two.

Labels are bounded: each lists its values here, and whatever else comes counts as "other". No label
is called service, pod, job, instance or namespace, which Prometheus adds itself. Two services in
Prometheus are distinguished by those, or by the engine: "target" at a verifier, "draft" at a
drafter.
"""

from __future__ import annotations

from typing import Literal

from common.sampling.acceptance_rule import AcceptanceRule
from common.telemetry.metric import Metric, counter, gauge, seconds, sizes
from common.types import IDENTITY_PARTS, BridgeMode, FinishReason

OTHER = "other"  # a label's value where the real one isn't listed
NONE = "none"  # a label's value where there is nothing to report

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

BUILD_INFO = gauge(
    "crossdraft_build_info", "Always 1; what runs here.", engine=ENGINE, version=(), model=()
)
GRPC_CALLS = counter(
    "crossdraft_grpc_calls_total",
    "Calls that ended, by status; error names the cause (docs/protocol.md), none where all was "
    "well.",
    method=METHOD,
    status=(),
    error=(),
)
GRPC_CALLS_NOW = gauge("crossdraft_grpc_calls_in_progress", "Calls in progress.", method=METHOD)
GRPC_PEERS = gauge(
    "crossdraft_grpc_peers",
    "Connections with a call of this service in progress: drafters at a verifier, clients at a "
    "drafter.",
)
PASS_SECONDS = seconds(
    "crossdraft_engine_pass_seconds", "Forward passes of the model.", engine=ENGINE
)
BATCH_ROWS = sizes(
    "crossdraft_engine_batch_rows", "Rows (tokens) in a forward pass.", engine=ENGINE
)
BATCH_SESSIONS = sizes(
    "crossdraft_engine_batch_sessions", "Sessions that shared a forward pass.", engine=ENGINE
)
FAILED_PASSES = counter(
    "crossdraft_engine_failed_passes_total",
    "Forward passes that raised: the target's end their sessions, the draft model's leave them at "
    "k = 0.",
    engine=ENGINE,
)
EAGER_PASSES = counter(
    "crossdraft_engine_eager_passes_total",
    "Forward passes on a GPU that fitted no CUDA graph and ran eagerly.",
    engine=ENGINE,
)
WAITING = gauge(
    "crossdraft_engine_waiting_sessions",
    "Sessions with work that isn't in a finished pass yet.",
    engine=ENGINE,
)
PAGES = gauge("crossdraft_engine_pages", "Pages of keys and values.", engine=ENGINE, state=STATE)
PREEMPTIONS = counter(
    "crossdraft_engine_preemptions_total",
    "Sessions that lost their pages to others and are prefilled again later.",
    engine=ENGINE,
)

# --- the verifier -------------------------------------------------------------------------------

SESSIONS = gauge("crossdraft_verifier_sessions", "Sessions open, VerifyOnce included.")
SESSION_LIMIT = gauge("crossdraft_verifier_session_limit", "Limit of open sessions (max_sessions).")
PREFILLS = counter("crossdraft_verifier_prefills_total", "First rounds (round 0).", rule=RULE)
PREFILL_TOKENS = counter(
    "crossdraft_verifier_prompt_tokens_total",
    "Prompt tokens of sessions whose prefill is done; a resumed session's output counts again.",
)
ROUNDS = counter(
    "crossdraft_verifier_rounds_total", "Rounds verified, prefill excluded.", rule=RULE
)
COMMITTED = counter(
    "crossdraft_verifier_committed_tokens_total",
    "Tokens committed in those rounds, next token included; divided by rounds: the mean "
    "acceptance length.",
    rule=RULE,
)
DRAFT_TOKENS = counter(
    "crossdraft_verifier_draft_tokens_total",
    "Draft tokens that were proposed in those rounds.",
    rule=RULE,
)
ACCEPTED = counter(
    "crossdraft_verifier_accepted_tokens_total",
    "Draft tokens that were accepted in those rounds.",
    rule=RULE,
)
VERIFIER_SECONDS = seconds(
    "crossdraft_verifier_stage_seconds",
    "Where a round's time went at the verifier: waiting for a pass, in passes, in acceptance.",
    stage=VERIFIER_STAGE,
    phase=PHASE,
)

# --- the drafter --------------------------------------------------------------------------------

STREAMS = gauge("crossdraft_drafter_streams", "Generate streams in progress.")
STREAM_LIMIT = gauge("crossdraft_drafter_stream_limit", "Limit of Generate streams (max_sessions).")
ANSWERS = counter(
    "crossdraft_drafter_answers_total",
    "Streams that ended with their summary.",
    finish_reason=FINISH_REASON,
)
EMPTY_ANSWERS = counter("crossdraft_drafter_empty_answers_total", "Those of them without any text.")
PROMPT_TOKENS = counter("crossdraft_drafter_prompt_tokens_total", "Target tokens in their prompts.")
OUTPUT_TOKENS = counter("crossdraft_drafter_output_tokens_total", "Target tokens in their outputs.")
DRAFTED_ROUNDS = counter(
    "crossdraft_drafter_rounds_total",
    "Rounds, prefill excluded, by how the draft crossed; none: the draft model had no part.",
    bridge=BRIDGE,
)
DRAFTED_COMMITTED = counter(
    "crossdraft_drafter_committed_tokens_total",
    "Tokens committed in those rounds, next token included; divided by rounds: the mean "
    "acceptance length.",
    bridge=BRIDGE,
)
DRAFTED_BY_POSITION = counter(
    "crossdraft_drafter_drafted_by_position_total",
    "Rounds that proposed a draft token at this position, first is 1.",
    bridge=BRIDGE,
    position=POSITION,
)
ACCEPTED_BY_POSITION = counter(
    "crossdraft_drafter_accepted_by_position_total",
    "Rounds that accepted the draft token at this position.",
    bridge=BRIDGE,
    position=POSITION,
)
DRAFTER_SECONDS = counter(
    "crossdraft_drafter_stage_seconds_total",
    "Where rounds' time went, as in the summaries' stage_times.",
    stage=DRAFTER_STAGE,
)
WIRE_BYTES = counter(
    "crossdraft_drafter_wire_bytes_total", "Bytes of Verify messages, both ways, prefill included."
)
FIRST_TOKEN_SECONDS = seconds(
    "crossdraft_drafter_first_token_seconds", "From a request to its first token."
)
ROUND_SECONDS = seconds(
    "crossdraft_drafter_round_seconds", "From one verdict to the next, drafting included."
)
DRAFT_HEALTHY = gauge(
    "crossdraft_drafter_draft_healthy",
    "0 if the last pass of the draft model raised, or a draft took longer than `draft_timeout_s`: "
    "sessions run at k = 0.",
)
UNDRAFTED_ANSWERS = counter(
    "crossdraft_drafter_undrafted_answers_total",
    "Answers that requested drafts and ended without: the draft model failed or took too long, "
    "or its context was full.",
)
PAUSE_SECONDS = seconds(
    "crossdraft_drafter_verifier_pause_seconds",
    "Verifiers lost in mid-session: from the request to one to the verdict of the next one.",
)

RESUMED_ON = counter(
    "crossdraft_drafter_resumed_on_total",
    "Streams that ended after they had gone on at a verifier with another identity, by the part "
    "that differed (`resume_on`).",
    part=IDENTITY_PARTS,
)
TARGET_CHANGES = counter(
    "crossdraft_drafter_target_changes_total",
    "Times that the verifiers' tokenizer or template was read again since it had changed.",
)

RUN_AHEAD = counter(
    "crossdraft_drafter_run_ahead_total",
    "Verdicts after drafts made ahead of them: the next draft was ready (hit), begun (part), or "
    "something else was committed (miss). Nothing where `run_ahead` is off.",
    result=("hit", "part", "miss"),
)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def of_service(service: Literal["verifier", "drafter"]) -> tuple[Metric, ...]:
    """What one of the two shows: its own, and what both have."""
    other = "crossdraft_drafter_" if service == "verifier" else "crossdraft_verifier_"
    return tuple(metric for metric in ALL if not metric.name.startswith(other))
