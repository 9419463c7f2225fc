"""crossdraft generate: flags, output and errors, asked of a fake drafter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest
from rich.console import Console

from cli.children import free_addresses
from client import streaming
from client.client import TokenDelta
from common.types import Origin
from tests.cli.command_line import one_line, run, serving_fake_drafter


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_fake_drafter() as found:
        yield found


def test_generate_streams_plain_text_when_piped(address: str) -> None:
    result = run("generate", "hello ", "--address", address)
    assert result.exit_code == 0, result.output
    assert result.stdout == "hello é\ufffd\n"
    reported = (
        "0 prompt tokens · 3 tokens · 4.0 tokens/s · first token after 0.50 s · "
        "mean acceptance length 2.00"
    )
    assert reported in result.stderr


def test_generate_reads_standard_input_and_makes_chats(address: str) -> None:
    assert run("generate", "-", "--address", address, stdin="from a pipe").stdout.startswith(
        "from a pipe"
    )
    chat = run("generate", "hi", "--chat", "--system", "be brief", "--address", address)
    assert chat.stdout.startswith("system: be brief | user: hi")


def test_generate_json_is_one_object_and_nothing_else(address: str) -> None:
    result = run("generate", "hello ", "--json", "--draft-steps", "0", "--address", address)
    answer = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert answer["text"] == "hello é\ufffd"
    assert answer["token_ids"] == [5, 0, 7]
    assert answer["origins"] == ["verifier", "draft", "verifier"]
    assert answer["finish_reason"] == "length"
    assert answer["statistics"]["drafting"] is False
    assert answer["statistics"]["stage_s"]["bridge"] == 0.25
    assert answer["statistics"]["acceptance_by_position"] == [1.0]


SAMPLING_FLAGS = {
    "--temperature=0.7": "temperature: 0.7",
    "--top-k=5": "top_k: 5",
    "--top-p=0.9": "top_p: 0.9",
    "--min-p=0.1": "min_p: 0.1",
    "--seed=0": "seed: 0",
    "--repetition-penalty=1.5": "repetition_penalty: 1.5",
    "--presence-penalty=-2": "presence_penalty: -2",
    "--frequency-penalty=2": "frequency_penalty: 2",
    "--logit-bias=7=-1.5": "logit_bias { key: 7 value: -1.5 }",
    "--min-new-tokens=3": "min_new_tokens: 3",
    "--stop=END": 'stop: "END"',
    "--stop-token-id=9": "stop_token_ids: 9",
    "--rule=target_only": "acceptance_rule: ACCEPTANCE_RULE_TARGET_ONLY",
}


def test_what_a_request_may_say_has_a_flag(address: str) -> None:
    result = run("generate", "echo", *SAMPLING_FLAGS, "--address", address)
    assert result.exit_code == 0, result.output
    assert all(reported in result.stdout for reported in SAMPLING_FLAGS.values()), result.stdout
    assert "ended by the stop string 'END'" in result.stderr and "rule target_only" in result.stderr
    plain = run("generate", "echo", "--address", address).stdout
    assert not any(reported.split(":")[0] + ":" in plain for reported in SAMPLING_FLAGS.values())


def test_log_probabilities_and_usage_are_in_the_json_object(address: str) -> None:
    answer = json.loads(run("generate", "echo", "--logprobs=2", "--address", address).stdout)
    assert answer["logprobs"] == [
        {"logprob": -0.5, "top_ids": [5, 6], "top_logprobs": [-0.5, -1.5]}
    ]
    assert answer["usage"] == {"prompt_tokens": 2, "output_tokens": 0, "total_tokens": 2}
    assert (answer["stop_string"], answer["rule"]) == ("END", None)
    assert "logprobs" not in json.loads(run("generate", "x", "--json", "--address", address).stdout)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--temperature=-1", "--temperature is -1.0; it must be 0 (greedy) or from"),
        ("--temperature=nan", "--temperature is nan"),
        ("--top-k=0", "--top-k is 0"),
        ("--presence-penalty=3", "--presence-penalty is 3.0; it must be from -2 to 2"),
        ("--logit-bias=7", "'7' isn't a token id, an equals sign and a number"),
        ("--rule=best", "--rule"),
    ],
)
def test_a_flag_out_of_range_is_named(flag: str, words: str) -> None:
    assert words in one_line(run("generate", "x", flag), 2)


def test_a_failed_call_is_one_line(address: str) -> None:
    line = one_line(run("generate", "full", "--address", address), 1)
    assert line.startswith("RESOURCE_EXHAUSTED: all 4 sessions are in use")
    (nobody,) = free_addresses(1)
    assert one_line(run("generate", "x", "--address", nobody), 1).startswith("UNAVAILABLE: ")


def test_a_stream_without_a_summary_is_one_line(address: str) -> None:
    line = one_line(run("generate", "cut", "--address", address), 1)
    assert line == "crossdraft: the drafter's stream ended without a summary\n"


def test_a_terminal_gets_no_control_characters_of_the_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(streaming, "Console", partial(Console, force_terminal=True, no_color=True))
    writer = streaming.DeltaWriter()
    every = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
    writer(TokenDelta(1, f"a{every}z", Origin.DRAFT))
    written = capsys.readouterr().out
    assert written.startswith("a␀␁") and "␛" in written and "␍" in written and "\n" in written
    assert not {*every} - {"\n", "\t"} & {*written}


def test_generate_refuses_0_tokens(address: str) -> None:
    assert "--max-new-tokens" in one_line(run("generate", "x", "--max-new-tokens", "0"), 2)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--tls-certificate", "c.pem"), "--tls-certificate and --tls-key are given together"),
        (("--tls-certificate", "c.pem", "--tls-key", "k.pem"), "needs --tls-ca"),
        (("--tls-ca", "none.pem"), "can't read none.pem"),
        (("--token-file", "none"), "can't read none: FileNotFoundError"),
        (("--token-file", "/dev/null"), "/dev/null holds no tokens; it must hold one"),
    ],
)
def test_files_that_will_not_do_are_named(flags: tuple[str, ...], words: str) -> None:
    assert words in one_line(run("generate", "x", *flags), 2)
