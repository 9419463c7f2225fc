"""The field's terms everywhere: no word of the earlier private vocabulary is left."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = "tests/test_words.py"
# An entry of docs/decisions may quote the words of its day; so may the list of changes.
QUOTING = ("docs/decisions/", "CHANGELOG.md", OURS, "common/pb/", "LICENSE", "cli/quality/text.txt")
# Old word: the field's term (docs/glossary.md).
OLD = {
    r"laws?|lawless|lawful(ness|ly)?": "distribution; invalid logits; lossless",
    r"drawn|[Dd]raws": "sampled, samples",
    r"no[-_]q": "target-only",
    r"[Ww]ish(es)?": "request",
    r"(Host|Device)?Choices": "sampler",
    r"Patience|patience": "timeout",
    r"Arrivals|GATHER": "batching delay",
    r"Met|Hung|Lost": "verifier history, VerifierTimeout, VerifierLost",
    r"room_s|rooms|make_room": "stages of a round; modules; KV memory profiling",
    r"ragged|Ragged": "variable-length",
    r"lanes?|LANES": "row of a tile",
    r"punch|heat": "mask logits; temperature",
    r"told|tells?|Tells?": "report, return, say",
    r"spell(s|ed|ing|ings)?": "vocabulary string, token mapping",
    r"AL": "mean acceptance length",
    r"Refuses to know": "does not know",
}
# Other people's names, and words of a text that a model continues.
ALLOWED = re.compile(r"joined\.tell\(\)|\"Tell the beginning of a story")


def tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for path in listed.stdout.splitlines() if not path.startswith(QUOTING)]


def test_no_old_word_is_left() -> None:
    old = re.compile("|".join(rf"(?P<w{n}>\b(?:{word})\b)" for n, word in enumerate(OLD)))
    terms = list(OLD.values())
    found = []
    for path in tracked():
        try:
            lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # an image or a compiled proto
        for number, line in enumerate(lines, start=1):
            match = None if ALLOWED.search(line) else old.search(line)
            if match is not None:
                term = terms[int((match.lastgroup or "w0")[1:])]
                found.append(f"{path}:{number}: {match.group()!r} is {term!r} here")
    assert not found, "\n".join(found)
