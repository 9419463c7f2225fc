"""THE MAP: one session, from prompt to finish.

    open                       the verifier prefills and answers with the first token
    propose -> check, again    draft, cross the bridge, have it checked, read what was committed

Knows the order of things. Each thing is done elsewhere: drafter/engine/engine.py drafts,
drafter/bridge/context.py and drafter/bridge/proposer.py cross the bridge,
drafter/verifier_client/client.py asks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from drafter.session import CommittedRun, SpeculativeSession


async def speculate(
    session: SpeculativeSession, over: bool = False
) -> AsyncGenerator[CommittedRun, None]:
    """Committed tokens, run by run; the last run has a finish reason. None if it is over before."""
    try:
        if over:
            return
        run = await session.open()
        yield run
        while run.finish_reason is None:
            proposal = await session.propose()
            run = await session.check(proposal)
            yield run
    finally:
        session.close()
