"""Both services as their settings secure them: mTLS between them, TLS and tokens before clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from client.client import Client, Request
from common.rpc.channel import ClientTls
from tests.processes.processes import Processes
from tests.processes.test_killed_drafter import command
from tests.support.certificates import Authority, replace
from tests.support.fake_pairs import PROMPTS

pytestmark = pytest.mark.long

TOKEN = "a-token-of-some-length"
REQUEST = Request(300, prompt=PROMPTS[0], ignore_eos=True)


async def refusal(client: Client) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.generate(REQUEST)
    return caught.value.code().name


async def test_the_settings_secure_both_services_and_rotate_under_a_stream(tmp_path: Path) -> None:
    inside, outside = Authority(tmp_path, "inside"), Authority(tmp_path, "outside")
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    certificate, key = inside.pair("verifier")
    own, own_key, clients_ca = tmp_path / "own.pem", tmp_path / "own.key", tmp_path / "ca.pem"
    inside.issue(own, own_key)
    replace(clients_ca, Path(inside.ca).read_bytes())
    async with Processes(tmp_path) as processes:
        verifier = await processes.verifier(
            tls_certificate=certificate, tls_key=key, tls_client_ca=inside.ca
        )
        drafter = await processes.drafter(
            verifier.address,
            tls_certificate=str(own),
            tls_key=str(own_key),
            verifier_tls_ca=str(clients_ca),
            bearer_tokens=str(tokens),
        )
        async with (
            Client(drafter.address, ClientTls(inside.ca), token=TOKEN) as client,
            Client(drafter.address, ClientTls(inside.ca)) as nameless,
            Client(drafter.address, ClientTls(outside.ca), token=TOKEN) as mistrusting,
            Client(drafter.address, token=TOKEN) as plain,
        ):
            expected = await client.generate(REQUEST)
            assert await refusal(nameless) == "UNAUTHENTICATED"
            assert await refusal(mistrusting) == await refusal(plain) == "UNAVAILABLE"

            code, out, err = await command(
                *("-m", "cli", "generate", PROMPTS[0], "--address", drafter.address),
                *("--max-new-tokens", "300", "--tls-ca", inside.ca, "--token-file", str(tokens)),
            )
            assert code == 0, err
            assert expected.text.startswith(out.rstrip("\n"))  # without ignore_eos

            begun = asyncio.Event()
            running = asyncio.create_task(client.generate(REQUEST, lambda _: begun.set()))
            await begun.wait()
            # Another authority signs all certificates from now on, and is the only one trusted.
            for ca in (str(clients_ca), inside.ca):
                replace(ca, Path(outside.ca).read_bytes())
            outside.issue(own, own_key)
            outside.issue(Path(certificate), Path(key))
            assert (await running).token_ids == expected.token_ids
            async with Client(drafter.address, ClientTls(outside.ca), token=TOKEN) as later:
                assert (await later.generate(REQUEST)).token_ids == expected.token_ids
        assert TOKEN not in drafter.log.read_text()
