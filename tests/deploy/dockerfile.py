"""deploy/Dockerfile, as far as tests ask: its instructions, by stage."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).parents[2] / "deploy" / "Dockerfile"


@dataclass(frozen=True)
class Stage:
    name: str
    base: str  # an image, or another stage
    instructions: tuple[tuple[str, str], ...]  # ("RUN", "pip install .")

    def all(self, keyword: str) -> list[str]:
        return [rest for word, rest in self.instructions if word == keyword]


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in FILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    words = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [(word.upper(), rest) for word, rest in words]


def stages() -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    for word, rest in instructions():
        if word == "FROM":
            base, as_, name = rest.split()
            assert as_ == "AS"
            found[name] = Stage(name, base, ())
        elif found:
            last = list(found.values())[-1]
            found[last.name] = Stage(last.name, last.base, (*last.instructions, (word, rest)))
    return found


def lineage(target: str, device: str = "cpu") -> list[Stage]:
    """The stages whose layers `target` has, the first first."""
    known = stages()
    found = []
    name = target
    while name in known:
        found.append(known[name])
        name = known[name].base.replace("${DEVICE}", device)
    return found[::-1]


def environment(target: str) -> dict[str, str]:
    """What ENV sets."""
    words = [
        word for stage in lineage(target) for rest in stage.all("ENV") for word in shlex.split(rest)
    ]
    return dict(word.split("=", 1) for word in words)
