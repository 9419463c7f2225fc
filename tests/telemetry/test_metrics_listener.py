"""The port where Prometheus asks: off unless set, everything that is named there when it is."""

from __future__ import annotations

import asyncio
import signal
import socket
import urllib.request
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from prometheus_client.parser import text_string_to_metric_families

import drafter.service
import verifier.service
from cli.children import free_addresses
from common.engine.telemetry import EngineTelemetry
from common.errors import ConfigError
from common.kv.pages import PagePool
from common.telemetry import listener
from common.telemetry.listener import listening
from common.telemetry.metrics import of_service
from common.telemetry.registry import Registry
from drafter.config import DrafterConfig
from tests.deploy.promql import FOREIGN
from tests.support.fake_pairs import draft_model, files, serving_pair, target_model
from tests.support.fake_services import make_verifier
from verifier.config import VerifierConfig


def asked(address: str) -> dict[str, Any]:
    """Families by the names that metrics.py gives them."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    assert "_created" not in text
    return {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(text)
    }


async def scraped_while_serving(serve: Callable[..., Any], config: Any) -> dict[str, Any]:
    """What a whole service reports, from its start to a signal."""
    ready = asyncio.Future[int]()
    running = asyncio.create_task(serve(config, ready.set_result))
    await asyncio.wait([ready, running], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running
    try:
        return await asyncio.to_thread(asked, config.metrics_listen)
    finally:
        signal.raise_signal(signal.SIGTERM)
        await running


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
@pytest.mark.parametrize("asked_at", ["127.0.0.1", "[::1]"])
def test_every_address_is_of_both_families_as_gprcs_are(host: str, asked_at: str) -> None:
    with listening(f"{host}:0", Registry("target")) as port:
        assert "process_open_fds" in asked(f"{asked_at}:{port}")


def test_without_ipv6_every_address_is_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(family: int) -> None:
        raise OSError(97, "Address family not supported by protocol")

    without = SimpleNamespace(AF_INET6=socket.AF_INET6, socket=refused)
    monkeypatch.setattr(listener, "socket", without)
    with listening("0.0.0.0:0", Registry("target")) as port:
        assert asked(f"127.0.0.1:{port}")
        with pytest.raises(OSError, match="refused"):
            asked(f"[::1]:{port}")


def assert_complete(found: dict[str, Any], service: Literal["verifier", "drafter"]) -> None:
    named = {metric.name: metric for metric in of_service(service)}
    ours = {name for name in found if name.startswith("crossdraft_")}
    assert ours == set(named)
    assert set(found) >= FOREIGN
    for name in ours:
        assert found[name].documentation == named[name].help
        assert found[name].type == named[name].kind
        for sample in found[name].samples:
            assert set(sample.labels) - {"le"} == set(named[name].labels)
            for label, values in named[name].labels.items():
                assert not values or sample.labels[label] in values


async def test_a_verifier_reports_all_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, info = make_verifier(target_model("wide"), files("wide"))
    monkeypatch.setattr(verifier.service, "build", lambda _: (engine, info, files("wide")))
    config = VerifierConfig(listen="127.0.0.1:0", metrics_listen=free_addresses(1)[0])
    found = await scraped_while_serving(verifier.service.serve, config)
    assert_complete(found, "verifier")
    (info_sample,) = found["crossdraft_build_info"].samples
    assert info_sample.labels == {"engine": "target", "version": "0", "model": "tiny target"}


async def test_a_drafter_reports_all_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving_pair("same tokenizer") as pair:
        made = pair.drafter.pair
        engine = type(made.engine)(draft_model("wide"), PagePool(64, 4), made.bridge, 32, 240, 1)
        fresh = type(made)(made.bridge, engine, made.verifier, made.info, made.chooser, True)

        async def build(*_: Any) -> Any:
            return fresh

        monkeypatch.setattr(drafter.service, "build", build)
        config = DrafterConfig(listen="127.0.0.1:0", metrics_listen=free_addresses(1)[0])
        assert_complete(await scraped_while_serving(drafter.service.serve, config), "drafter")


def test_nothing_listens_unless_it_is_set() -> None:
    telemetry = EngineTelemetry("target", PagePool(1, 1), lambda: 0)
    with listening(None, telemetry.registry) as port:
        assert port is None
    assert VerifierConfig().metrics_listen is None
    assert DrafterConfig().metrics_listen is None


@pytest.mark.parametrize("address", ["9100", ":9100", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_that_is_none_is_refused_by_name(address: str) -> None:
    telemetry = EngineTelemetry("target", PagePool(1, 1), lambda: 0)
    with pytest.raises(ConfigError, match=f"metrics_listen is '{address}'; it must be host:port"):
        listening(address, telemetry.registry).__enter__()


def test_a_port_that_is_taken_is_refused_by_name() -> None:
    telemetry = EngineTelemetry("target", PagePool(1, 1), lambda: 0)
    with listening("127.0.0.1:0", telemetry.registry) as port:
        second = listening(
            f"127.0.0.1:{port}", EngineTelemetry("draft", PagePool(1, 1), lambda: 0).registry
        )
        with pytest.raises(ConfigError, match=f"metrics_listen is '127.0.0.1:{port}'; .*in use"):
            second.__enter__()
        assert asked(f"127.0.0.1:{port}")
