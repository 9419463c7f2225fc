"""The thread a model lives on, and the mailbox through which results leave it.

Knows commands go in, one step follows another while there is work, nothing spins while there is
none. Does not know what a step does. The event loop only moves messages.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_S = 10.0  # for the last step to return; one that hangs mustn't keep the process

_step = threading.local()  # .mail: what the step in progress on this thread has posted


class Mailbox(Generic[T]):
    """Results for one session: posted on the engine's thread, awaited on the loop that made it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[T | BaseException] = asyncio.Queue()

    def post(self, result: T | BaseException) -> None:
        """Leaves at the end of the engine's step, together with all that the step posts."""
        mail: list[tuple[Mailbox[Any], Any]] | None = getattr(_step, "mail", None)
        if mail is None:
            _send([(self, result)])
        else:
            mail.append((self, result))

    def put(self, result: T | BaseException) -> None:
        """On the loop: a result is there."""
        self._queue.put_nowait(result)

    async def take(self) -> T:
        """The next result; raises it if it is an error."""
        result = await self._queue.get()
        if isinstance(result, BaseException):
            raise result
        return result


def _send(mail: list[tuple[Mailbox[Any], Any]]) -> None:
    """Hand results over, waking each event loop once.

    Waking it for each would cost a system call per result, and the loop would take the interpreter
    from the step between two of them.
    """
    for loop in {mailbox.loop: None for mailbox, _ in mail}:
        own = [(mailbox, result) for mailbox, result in mail if mailbox.loop is loop]
        try:
            loop.call_soon_threadsafe(_put_all, own)
        except RuntimeError:  # the loop is closed: the service is gone, and so is whoever waited
            log.debug("results came after their event loop had closed")


def _put_all(mail: list[tuple[Mailbox[Any], Any]]) -> None:
    for mailbox, result in mail:
        mailbox.put(result)


class EngineThread:
    """Runs `step` again and again while it says that it did something; sleeps otherwise."""

    def __init__(
        self,
        name: str,
        step: Callable[[], bool],
        threads: int = 0,
        enter: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """threads: of each operation, 0 for torch's own choice (all cores).

        enter, at_end: called first and last on the thread, whyever it ends.
        """
        self._step = step
        self._enter, self._at_end = enter, at_end
        self._on_death: Callable[[], object] = lambda: None
        self._threads = threads
        self._busy_since: float | None = None  # written by the thread, read by anyone
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def on_death(self, callback: Callable[[], object]) -> None:
        """Call `callback` if the engine dies, on whichever thread notices first."""
        self._on_death = callback

    def die(self, cause: Exception) -> None:
        """End as if a step had raised `cause`; from any thread, even if a step never returns."""
        # Streams that nobody serves would wait for ever while health says all is well, so the
        # service is to end; whoever keeps it starts it again.
        log.critical("the engine can't go on", exc_info=cause)
        try:
            self._on_death()
        except RuntimeError:  # the loop is closed: the service has ended already
            log.debug("the engine died after its event loop had closed")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the step in progress and end the thread."""
        self._commands.put(None)
        if self._thread.is_alive():
            self._thread.join(STOP_S)
            if self._thread.is_alive():
                log.error("a step hasn't returned for %.0f s; it is left behind", self.busy_s())

    def busy_s(self) -> float:
        """How long the step or command in progress has taken so far; 0 while there is none."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def call(self, command: Callable[[], None]) -> None:
        """Have `command` run on the engine's thread, before its next step. Never blocks."""
        self._commands.put(command)

    def wait_for_more(self, until: Callable[[], float]) -> None:
        """On the engine's thread: run commands as they come until `until()` (time.monotonic).

        `until` is asked again after each command, so that waiting ends with its reason. What the
        commands post leaves before the step goes on.
        """
        while (left := until() - time.monotonic()) > 0:
            try:
                command = self._commands.get(timeout=left)
            except queue.Empty:
                break
            if command is None:
                self._commands.put(None)  # the end of the thread, which isn't ours to take
                break
            command()
        if mail := getattr(_step, "mail", None):
            _send(mail)
            mail.clear()

    def wait_for_one(self, limit_s: float) -> None:
        """On the engine's thread: wait for the next command so long, and run it."""
        limits = iter([time.monotonic() + limit_s])
        self.wait_for_more(lambda: next(limits, 0.0))

    def _run(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        busy = False
        try:
            self._enter()
            while self._drain(block=not busy):
                self._busy_since = time.monotonic()
                busy = self._step_and_send()
        except Exception as cause:  # our own mistake
            self.die(cause)
        finally:
            self._busy_since = None
            self._at_end()

    def _step_and_send(self) -> bool:
        mail: list[tuple[Mailbox[Any], Any]] = []
        _step.mail = mail
        try:
            return self._step()
        finally:
            _step.mail = None
            _send(mail)

    def _drain(self, block: bool) -> bool:
        """Run the queued commands; False once the thread should end."""
        while True:
            if block:
                self._busy_since = None
            try:
                command = self._commands.get(block=block)
            except queue.Empty:
                return True
            if command is None:
                return False
            self._busy_since = time.monotonic()
            command()
            block = False
