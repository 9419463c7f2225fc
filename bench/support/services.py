"""Our services as child processes, asked one question at a time or many at once.

A second drafter, without prompt lookup, shares the verifier: what a draft model brings by itself is
distinguished that way, in the same run. Knows how to start them and what they say of themselves.
Does not know what is compared.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.status import Status

from bench.speed.measures import Run
from bench.support.target_prompts import TargetPrompt
from cli.children import Child, free_addresses
from cli.demo import DRAFTING
from client.client import Client, Output, Pair, Statistics
from common.rpc.channel import open_channel
from common.types import BridgeMode
from common.vocabulary.files import TokenizerFiles
from drafter.verifier_client.client import VerifierClient

START_S = 300.0
MAX_STEPS = 16
MAX_MESSAGE_BYTES = 16 * 2**20
KV_MEMORY_MIB = 1024  # each: a fixed sum, since other systems' weights come into memory later


class Services:
    """A verifier and its drafters on loopback; an async context manager."""

    def __init__(
        self,
        target: str,
        draft: str,
        logs: Path,
        console: Console,
        without_lookup: bool = False,
        linear: str = "exact",
    ) -> None:
        """without_lookup: whether the second drafter is there. linear: of the target."""
        verifier_address, *addresses = free_addresses(3)
        verifier = ["verifier", "--model", target, "--max-draft-tokens", str(MAX_STEPS)]
        verifier += ["--max-context-length", "2048", "--linear", linear]
        drafter = ["drafter", "--model", draft, "--verifier", verifier_address]
        drafter += ["--verifier-timeout-s", str(START_S), "--max-draft-steps", str(MAX_STEPS)]
        drafter += ["--linear", DRAFTING[linear]]
        memory = ["--kv-memory-mib", str(KV_MEMORY_MIB)]
        self._children = [
            Child(verifier + memory, verifier_address, logs / "verifier.log"),
            Child(drafter + memory, addresses[0], logs / "drafter.log"),
        ]
        if without_lookup:
            drafter += ["--no-lookup", *memory]
            self._children.append(Child(drafter, addresses[1], logs / "drafter-no-lookup.log"))
        self._console = console
        self._stack = AsyncExitStack()
        self.pair: Pair
        self.eos_ids: frozenset[int]
        self.row_invariant: bool
        self.files: TokenizerFiles  # the target's
        self.clients: list[Client]  # of the drafter, and of the one without lookup

    async def __aenter__(self) -> Services:
        try:
            for child in self._children:
                self._stack.enter_context(child)
            for child in self._children:
                with self._console.status("") as status:

                    def waiting(s: float, name: str = child.name, shown: Status = status) -> None:
                        shown.update(f"the {name} loads its model: {s:.0f} s")

                    await child.wait_serving(START_S, waiting)
            self.clients = [
                await self._stack.enter_async_context(Client(child.address))
                for child in self._children[1:]
            ]
            self.pair = await self.clients[0].pair()
            async with open_channel(self._children[0].address, MAX_MESSAGE_BYTES) as channel:
                info, self.files = await VerifierClient(channel, START_S).describe()
            self.eos_ids, self.row_invariant = info.eos_ids, info.row_invariant
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def modes(self) -> tuple[BridgeMode, ...]:
        """What there is to choose from: equal tokenizers have no bridge."""
        if self.pair.bridge == "identity":
            return (BridgeMode.AUTO,)
        return (BridgeMode.TEXT, BridgeMode.INTERSECTION, BridgeMode.AUTO)

    async def run(
        self,
        system: str,
        target_prompt: TargetPrompt,
        max_new_tokens: int,
        steps: int,
        mode: BridgeMode,
        lookup: bool = True,
    ) -> Run:
        """One question, alone; `steps` 0 is the target alone."""
        client = self.clients[0 if lookup else 1]
        output = await client.generate(target_prompt.request(max_new_tokens, steps, mode))
        if output.statistics.prompt_tokens != len(target_prompt.ids):
            raise RuntimeError(
                f"{target_prompt.name}: the drafter reads the prompt in other ids than us"
            )
        return run_of(system, steps, target_prompt, output)


def run_of(system: str, steps: int, target_prompt: TargetPrompt, output: Output) -> Run:
    """What the drafter measured, in the words that all systems share."""
    statistics: Statistics = output.statistics
    return Run(
        system=system,
        draft_steps=steps,
        prompt=target_prompt.name,
        token_ids=output.token_ids,
        rounds=statistics.rounds,
        drafted_by_position=statistics.drafted_by_position,
        accepted_by_position=statistics.accepted_by_position,
        time_to_first_token_s=statistics.time_to_first_token_s,
        total_s=statistics.total_s,
        stage_s=statistics.stage_s,
        wire_bytes=statistics.wire_bytes,
        rounds_by_mode={
            "intersection": statistics.intersection_rounds,
            "text": statistics.text_rounds,
        },
    )
