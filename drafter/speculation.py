"""One session, from prompt to finish: the drafter's loop.

    open      the verifier prefills and returns the first token
    propose   draft k tokens and cross the bridge: a proposal in target ids
    verify    send it, receive the verdict, commit the accepted tokens and the next one

Knows the order of things. Each thing is done elsewhere: drafter/engine/engine.py drafts,
drafter/bridge/context.py and drafter/bridge/proposer.py cross the bridge,
drafter/verifier_client/client.py sends and receives.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from drafter.session import CommittedRun, SpeculativeSession


async def speculate(
    session: SpeculativeSession, over: bool = False
) -> AsyncGenerator[CommittedRun, None]:
    """Committed tokens, run by run; the last run has a finish reason. No run if it is over."""
    try:
        if over:
            return
        run = await session.open()
        yield run
        while run.finish_reason is None:
            proposal = await session.propose()
            run = await session.verify(proposal)
            yield run
    finally:
        session.close()
