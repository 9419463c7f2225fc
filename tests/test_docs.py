"""The pages name what exists, stay short, and README's examples work."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from google.protobuf import json_format

from common.pb import drafter_pb2
from tests.support.fake_pairs import serving_pair

ROOT = Path(__file__).parents[1]
# A decision keeps the paths and words of its day, so that only the index is checked.
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs/decisions/README.md",
]
DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
TOP = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
LONGEST = {"README.md": 150, "docs/structure.md": 79}
WIDTH = 100

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")
_MODULE = re.compile(r"python -m ([\w.]+)")
_FENCE = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def named_paths(text: str) -> set[str]:
    """Code spans that are files or folders of this repository, from its root."""
    spans = (span for span in _SPAN.findall(text) if re.fullmatch(r"[\w./-]+", span))
    return {span for span in spans if "/" in span and span.split("/")[0] in TOP}


def is_module(dotted: str) -> bool:
    path = ROOT / dotted.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()


def anchors(page: Path) -> set[str]:
    """The fragments that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("page", "lines"), LONGEST.items())
def test_a_page_for_newcomers_is_short(page: str, lines: int) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= lines


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS], ids=name_of)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    missing = []
    for link in _LINK.findall(prose(page)):
        target, _, fragment = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (fragment and fragment not in anchors(file)):
            missing.append(link)
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_that_a_page_names_exist(page: Path) -> None:
    missing = {path for path in named_paths(prose(page)) if not (ROOT / path).exists()}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    modules = set(_MODULE.findall(page.read_text(encoding="utf-8")))
    ours = {name.rstrip(".") for name in modules if name.split(".")[0] in TOP}
    missing = {name for name in ours if not is_module(name)}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_wrapped(page: Path) -> None:
    lines = prose(page).splitlines()
    wide = [line for line in lines if len(line) > WIDTH and not (line[0] == "|" or "](" in line)]
    assert not wide


def test_the_index_of_decisions_names_every_file_once() -> None:
    index = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    linked = re.findall(r"^\| \[([\w-]+\.md)\]\(\1\)", index, re.MULTILINE)
    assert sorted(linked) == [page.name for page in DECISIONS if page.name != "README.md"]


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_decisions_are_dated_and_newest_first(page: Path) -> None:
    if page.name == "README.md":
        return
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    dates = [heading[:10] for heading in headings]
    assert headings and all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for date in dates)
    assert dates == sorted(dates, reverse=True)


def test_readme_names_every_top_level_folder() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tracked = {"bench", "cli", "client", "common", "deploy", "docs", "drafter", "examples"}
    folders = tracked | {"proto", "tests", "verifier"}
    packages = {f"common/{path.parent.name}" for path in ROOT.glob("common/*/__init__.py")}
    named = {name.rstrip("/") for name in re.findall(r"`([\w/]+/)`", text)}
    assert (folders - {"common"}) | packages <= named


def test_pictures_scale_and_have_a_title() -> None:
    for picture in sorted((ROOT / "docs/img").glob("*.svg")):
        text = picture.read_text(encoding="utf-8")
        assert "viewBox=" in text, picture.name
    services = (ROOT / "docs/img/services.svg").read_text(encoding="utf-8")
    assert "<title" in services and "prefers-color-scheme: dark" in services


async def test_readmes_python_example_streams_an_answer() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    async with serving_pair() as pair:
        code = example.replace("127.0.0.1:50052", pair.drafter.address)
        # The fakes have no chat template.
        code = code.replace('messages=(("user", "Hello"),)', 'prompt="Hello"')
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code),
            stdout=PIPE,
            stderr=PIPE,
            env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        )
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert out.decode().endswith(" tokens per round\n")


def test_readmes_grpcurl_request_is_one() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [body] = re.findall(r"-d '([^']+)'", readme)
    request = json_format.Parse(body, drafter_pb2.GenerateRequest())
    assert request.WhichOneof("input") == "prompt" and request.max_new_tokens
    service = drafter_pb2.DESCRIPTOR.services_by_name["DrafterService"]
    assert f"{service.full_name}/{service.methods_by_name['Generate'].name}" in readme
