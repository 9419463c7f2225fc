"""The demo's picture: tokens by origin, the same for the same answer."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from cli.screenshot import save
from client.results import TokenDelta
from common.types import Origin

DELTAS = [
    TokenDelta(1, "def", Origin.VERIFIER),
    TokenDelta(2, "fibonacci", Origin.DRAFT),
    TokenDelta(3, "\x1b[2J", Origin.DRAFT),
    TokenDelta(None, "\ufffd", None),
]


def styles(path: Path) -> dict[str, str]:
    """The class of each piece of text in the picture."""
    tree = ElementTree.parse(path)
    return {
        "".join(each.itertext()).strip("\xa0"): each.get("class", "")
        for each in tree.iter("{http://www.w3.org/2000/svg}text")
    }


def test_accepted_drafts_and_the_targets_own_tokens_have_different_styles(tmp_path: Path) -> None:
    path = tmp_path / "demo.svg"
    save(path, "a → b", DELTAS, ["below"])
    found = styles(path)
    (own,) = (style for text, style in found.items() if text == "def")
    (draft,) = (style for text, style in found.items() if "fibonacci" in text)
    assert own != draft
    assert {"a\xa0→\xa0b", "below"} <= set(found)
    assert "\x1b" not in path.read_text(encoding="utf-8")


def test_the_same_answer_gives_the_same_picture(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        save(tmp_path / name, "a → b", DELTAS, [])
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
