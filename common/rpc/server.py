"""The shell around a service: port, TLS, health, reflection, and an end that loses nothing.

Knows how a gRPC server is started and drained on a signal. Does not know what its services do
(handed in as `Service`), how errors travel (common/rpc/statuses.py) and what health says
(common/rpc/health.py).
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from common.addresses import listen_address
from common.errors import ConfigError, EngineDied
from common.rpc.channel import server_options
from common.rpc.guards import guards
from common.rpc.health import Health
from common.rpc.security.tls import TlsFiles, WatchedTls, server_credentials
from common.rpc.statuses import LAST_STATUS_S, ErrorMapping

log = logging.getLogger(__name__)


Drain = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class ServerSettings:
    """What the shell needs of a service's configuration."""

    listen: str  # "host:port"; port 0 takes any free one
    max_message_bytes: int
    grace_s: float
    reflection: bool = False
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    bearer_tokens: str | None = None  # a file
    idle_timeout_s: float | None = None  # for a client to read one message of a stream
    max_metadata_bytes: int = 8192
    max_streams_per_peer: int | None = None  # None: any number
    health_listen: str | None = None  # health alone, without TLS
    max_connection_age_s: float | None = None


@dataclass(frozen=True)
class Service:
    """One servicer and the generated function that adds it to a server."""

    full_name: str  # "crossdraft.v1.VerifierService"
    register: Callable[[Any, grpc.aio.Server], None]
    servicer: Any
    # Gets what the service calls when it can't serve for a while, and when it can again.
    report_to: Callable[[Callable[[bool], None]], None] = lambda set_able: None


class GrpcServer:
    """A grpc.aio server; start, set_serving(True), run_until_signal."""

    def __init__(
        self,
        settings: ServerSettings,
        services: Sequence[Service],
        observers: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """observers: interceptors that see how each call ends, errors mapped already."""
        self._settings = settings
        self._observers = observers
        self._services = services
        self._errors = ErrorMapping(
            guards(settings.bearer_tokens, settings.max_streams_per_peer), settings.idle_timeout_s
        )
        self._server: grpc.aio.Server | None = None
        self._died = asyncio.Event()
        self._welcome = False  # by the process's own course: started, not draining
        self._able = {service.full_name: True for service in services}
        for service in services:
            service.report_to(partial(self._set_able, service.full_name))
        self.health = Health([service.full_name for service in services])

    async def start(self) -> int:
        """Bind and serve, health NOT_SERVING. Returns the port. Raises ConfigError if it can't."""
        assert self._server is None
        settings = self._settings
        server = grpc.aio.server(
            interceptors=[*self._observers, self._errors],
            options=server_options(
                settings.max_message_bytes,
                settings.max_metadata_bytes,
                settings.max_connection_age_s,
            ),
        )
        for service in self._services:
            service.register(service.servicer, server)
        self.health.add_to(server)
        if settings.reflection:
            self._add_reflection(server)
        port = _bind(server, settings)
        if settings.health_listen is not None:
            await self.health.open(settings.health_listen, [self._errors])
        await server.start()
        self._server = server
        return port

    async def set_serving(self, serving: bool) -> None:
        """Whether calls are welcome: what health says of the whole and of each service.

        Waits for no watcher, so that none can hold up the end.
        """
        self._welcome = serving
        self.health.set_serving(serving and all(self._able.values()))

    def _set_able(self, name: str, able: bool) -> None:
        self._able[name] = able
        self.health.set_serving(self._welcome and all(self._able.values()))

    async def run_until_signal(self, on_drain: Drain | None = None) -> None:
        """Serve until SIGTERM or SIGINT; then not ready, `on_drain`, and stop within the grace.

        A second signal ends it at once. Raises EngineDied once `die` was called: all calls have
        been cut off then.
        """
        loop = asyncio.get_running_loop()
        signalled, hurried = asyncio.Event(), asyncio.Event()

        def receive() -> None:
            (hurried if signalled.is_set() else signalled).set()

        caught = (signal.SIGTERM, signal.SIGINT)
        for number in caught:
            loop.add_signal_handler(number, receive)
        draining = asyncio.create_task(self._drain_once(signalled, on_drain))
        died = asyncio.create_task(self._died.wait())
        hurrying = asyncio.create_task(hurried.wait())
        try:
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait([draining, died, hurrying], return_when=first)
            if self._died.is_set():
                await self.set_serving(False)
                await self.stop()
                raise EngineDied("the engine died; the log says why")
            if hurried.is_set():
                log.warning("a second signal: ending now")
                await self.stop()
                return
            await draining
        finally:
            for number in caught:
                loop.remove_signal_handler(number)
            draining.cancel()
            died.cancel()
            hurrying.cancel()
            await asyncio.wait([draining, died, hurrying])

    async def unless_dead(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, which may wait for the engine. Raises EngineDied if that dies meanwhile."""
        working = asyncio.create_task(work)
        died = asyncio.create_task(self._died.wait())
        try:
            await asyncio.wait([working, died], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise EngineDied("the engine died; the log says why")
            await working
        finally:
            working.cancel()
            died.cancel()
            await asyncio.wait([working, died])

    def die(self) -> None:
        """The engine behind the services is dead: end now. Call it on the event loop."""
        self._died.set()

    async def _drain_once(self, signalled: asyncio.Event, on_drain: Drain | None) -> None:
        await signalled.wait()
        log.info("draining, for at most %g s", self._settings.grace_s)
        deadline = asyncio.get_running_loop().time() + self._settings.grace_s
        await self.set_serving(False)
        if on_drain is not None:
            try:
                await asyncio.wait_for(on_drain(), self._settings.grace_s)
            except TimeoutError:
                log.warning("not drained after %g s", self._settings.grace_s)
        await self.stop(max(0.0, deadline - asyncio.get_running_loop().time()))

    async def stop(self, grace: float | None = None) -> None:
        """Take no new calls, give those of our services `grace` seconds (None: none), and end."""
        server = self._server
        if server is None:
            return
        stopping = asyncio.create_task(server.stop(grace))
        if grace:
            # A watcher of health stays until it is cut off, and mustn't hold up the end for the
            # whole grace. A later stop with a shorter grace overrules the first.
            names = [service.full_name for service in self._services]
            idle = asyncio.create_task(self._errors.until_idle(names))
            try:
                await asyncio.wait([stopping, idle], return_when=asyncio.FIRST_COMPLETED)
            finally:
                idle.cancel()
            await server.stop(min(grace, LAST_STATUS_S))
        await stopping
        self._server = None
        await self.health.close()

    def _add_reflection(self, server: grpc.aio.Server) -> None:
        try:
            from common.rpc.reflection import add_reflection
        except ImportError:
            log.warning("grpcio-reflection isn't installed; serving without reflection")
            return
        names = [*(service.full_name for service in self._services), "grpc.health.v1.Health"]
        add_reflection(names, server)


def _bind(server: grpc.aio.Server, settings: ServerSettings) -> int:
    listen_address("listen", settings.listen)
    try:
        if settings.tls_certificate and settings.tls_key:
            bound = server.add_secure_port(settings.listen, _credentials(settings))
        else:
            bound = server.add_insecure_port(settings.listen)
    except RuntimeError as cause:
        bound = 0
        log.debug("%s", cause)
    if bound == 0:
        raise ConfigError(
            f"listen is {settings.listen!r}; that address can't be bound (another server on the "
            "port, or not an address of this machine)"
        )
    return int(bound)


def _credentials(settings: ServerSettings) -> grpc.ServerCredentials:
    files = TlsFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
    return server_credentials(WatchedTls(files))
