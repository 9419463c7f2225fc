"""The drafter's settings.

Knows names, defaults, ranges, and which settings need each other. Does not know what is
discovered at start (the verifier's model and limits, how many pages fit), which belongs to the
objects that discover it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.errors import ConfigError
from common.settings.numbers import (
    MAX_COUNT,
    MAX_MIB,
    MAX_PAGE_SIZE,
    MAX_ROWS,
    MAX_S,
    MAX_SESSIONS,
    MAX_THREADS,
)
from common.settings.service import ServiceConfig
from common.settings.sources import setting


@dataclass(frozen=True)
class DrafterConfig(ServiceConfig):
    model: str = setting(
        "smollm2-135m", "Draft model: a preset, a directory, a .gguf file or a Hub id."
    )
    verifier: str = setting("127.0.0.1:50051", "Address of the verifier.")
    listen: str = setting("127.0.0.1:50052", "Address to listen on; port 0 takes any free one.")
    bridge: Literal["auto", "intersection", "text"] = setting(
        "auto",
        "How drafts cross to the target's vocabulary: shared tokens only, by text, or the better "
        "of both, learned over all sessions. Equal tokenizers need no bridge.",
    )
    draft_steps: int = setting(
        3,
        "Draft steps per round where a request doesn't say; 0: the target alone.",
        minimum=0,
        maximum=1024,
    )
    max_draft_steps: int = setting(
        16, "The most draft steps that a request may have.", minimum=0, maximum=1024
    )
    run_ahead: Literal["auto", "on", "off"] = setting(
        "auto",
        "Whether a session goes on drafting while its proposal is checked, as if it were accepted; "
        "auto: on a GPU. On a CPU it takes time from whatever else runs there.",
    )
    context: Literal["auto", "canonical", "token"] = setting(
        "auto",
        "How committed text is encoded for the draft model: canonical as it would encode the whole "
        "text itself, token by token as the target's tokens split it, auto as each bridge mode "
        "does best.",
    )
    lookup: bool = setting(
        True, "Prompt lookup: also propose what followed the same tokens earlier in the text."
    )
    q_entries: int = setting(
        64,
        "Tokens at most in the distribution that goes along with a sampled draft token; cut to the "
        "verifier's limit. More of them accept a little more and cost eight bytes each.",
        minimum=1,
        maximum=4096,
    )
    chat_template: Literal["own", "target"] = setting(
        "own",
        "Chat template that the draft model reads: its own, or the target's.",
    )
    markup_in_messages: bool = setting(
        False,
        "Whether special tokens' strings in a conversation's messages are these tokens, so that "
        "a message may hold turns; otherwise they are text. For clients that are trusted.",
    )
    max_sessions: int = setting(64, "Streams at once.", minimum=1, maximum=MAX_SESSIONS)
    # Token healing needs two rows of one session.
    max_batch_tokens: int = setting(128, "Rows in one forward pass.", minimum=2, maximum=MAX_ROWS)
    kv_memory_mib: int | None = setting(
        None,
        "Memory for keys and values, in MiB; left out: from the free memory.",
        minimum=1,
        maximum=MAX_MIB,
    )
    page_size: int = setting(
        16, "Tokens in one page of keys and values.", minimum=1, maximum=MAX_PAGE_SIZE
    )
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
    linear: Literal["exact", "int8", "fp16", "plain"] = setting(
        "int8",
        "How weights multiply: exact, int8 (the fastest on a CPU), fp16 or plain (torch's own); "
        "drafts change speed and never output. On a GPU the last three are one.",
    )
    threads: int = setting(
        0, "Threads of the model; 0: one for each core.", minimum=0, maximum=MAX_THREADS
    )
    draft_timeout_s: float = setting(
        30.0,
        "Seconds that a session waits for its draft; it goes on without the draft model then.",
        minimum=0.01,
        maximum=MAX_S,
    )
    verifier_timeout_s: float = setting(
        60.0,
        "Seconds to look for a verifier, at start and when it is lost in mid-stream or over its "
        "prompt; a new request that finds none at all is refused after 5 s.",
        minimum=0,
        maximum=MAX_S,
    )
    round_timeout_s: float = setting(
        120.0,
        "Seconds that a verifier may take over one round; it counts as lost then, and the session "
        "goes on at another.",
        minimum=0.1,
        maximum=MAX_S,
    )
    open_timeout_s: float = setting(
        600.0,
        "The same for the first round at a verifier, which reads the prompt, from when it has "
        "answered that it is there.",
        minimum=0.1,
        maximum=MAX_S,
    )
    resume_on: str = setting(
        "",
        "Parts of a verifier's identity that may differ where a running stream goes on after a "
        "loss: weights, numerics, tokenizer, chat_template, with commas. Otherwise the stream "
        "ends, since the rest of its text would be another model's.",
    )
    max_prompt_bytes: int = setting(
        2**20,
        "Size of a prompt's or a conversation's text, in UTF-8.",
        minimum=1,
        maximum=MAX_COUNT,
    )
    idle_timeout_s: float = setting(
        1800.0, "Seconds that a client may take to read one message.", minimum=0.1, maximum=MAX_S
    )
    grace_s: float = setting(
        20.0, "Seconds that running streams have to finish after SIGTERM.", minimum=0, maximum=MAX_S
    )
    verifier_tls_ca: str | None = setting(
        None,
        "PEM file that signed the verifier's certificate; reach it over TLS. The drafter's own "
        "certificate, if it has one, is shown to the verifier.",
    )
    verifier_tls_name: str | None = setting(
        None, "Name that the verifier's certificate must have; left out: the address's host."
    )
    bearer_tokens: str | None = setting(
        None,
        "File of tokens, one a line; clients must then send one of them, as metadata "
        "authorization: Bearer TOKEN. Read again when it changes.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draft_steps > self.max_draft_steps:
            raise ConfigError(
                f"draft_steps is {self.draft_steps}; it must be at most max_draft_steps, "
                f"which is {self.max_draft_steps}"
            )
        if self.verifier_tls_name and not self.verifier_tls_ca:
            raise ConfigError("verifier_tls_name needs verifier_tls_ca")
