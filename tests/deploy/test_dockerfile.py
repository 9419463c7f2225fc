"""deploy/Dockerfile, as far as it can be checked without building it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
import warnings
from pathlib import Path

import pytest

from cli.main import main
from tests.deploy.dockerfile import FILE, instructions, lineage, stages
from tests.deploy.manifests import ROOT, SERVICES, containers, overlay, pod_spec, ports

HADOLINT = Path(sys.prefix) / "bin" / "hadolint"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMPILERS = ("gcc", "g++", "clang", "make", "build-essential", "libc6-dev")
each = pytest.mark.parametrize("service", SERVICES)


def lint(text: str) -> subprocess.CompletedProcess[str]:
    command = [str(HADOLINT), "--failure-threshold", "style", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_hadolint_has_nothing_to_say() -> None:
    run = lint(FILE.read_text())
    assert (run.returncode, run.stdout) == (0, "")


def test_hadolint_would_say_it() -> None:
    assert "DL3006" in lint("FROM python\n").stdout


def test_there_are_two_targets_over_one_pinned_image() -> None:
    known = stages()
    images = {stage.base for stage in known.values()} - set(known) - {"runtime-${DEVICE}"}
    (image,) = images
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", image)
    bases = {stage.base for stage in known.values()}
    ends = {name for name in known if name not in bases and not name.startswith("runtime-")}
    assert ends - {"build"} == set(SERVICES)


def test_the_image_has_the_python_that_the_project_asks_for() -> None:
    (version,) = {
        tuple(map(int, found.groups()))
        for stage in stages().values()
        if (found := re.match(r"python:(\d+)\.(\d+)", stage.base))
    }
    assert f">={version[0]}.{version[1]}" == PROJECT["project"]["requires-python"]


def test_all_that_is_copied_exists_and_nothing_else_is_sent() -> None:
    sources = [source for rest in stages()["build"].all("COPY") for source in rest.split()[:-1]]
    for source in sources:
        assert (ROOT / source).exists(), source
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert set(sources) == allowed


def test_every_package_is_copied_and_only_packages_are() -> None:
    copied = {rest.split()[0] for rest in stages()["build"].all("COPY") if len(rest.split()) == 2}
    packages = {
        name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    assert {name for name in copied if (ROOT / name).is_dir()} == packages
    (licence,) = PROJECT["project"]["license-files"]
    assert any(licence in rest.split() for rest in stages()["build"].all("COPY"))


def test_versions_are_those_of_the_constraints() -> None:
    pins = set((ROOT / "constraints.txt").read_text().splitlines())
    named = set(re.findall(r"[\w.-]+==[\w.]+", FILE.read_text()))
    assert named and named <= pins
    build = stages()["build"]
    assert any("PIP_CONSTRAINT=/src/constraints.txt" in rest for rest in build.all("ENV"))
    assert "constraints.txt ./" in build.all("COPY")
    # Every direct dependency has a pin, so that an image is the same next month.
    names = {re.split(r"[\[>=<]", d)[0].lower() for d in PROJECT["project"]["dependencies"]}
    assert names <= {pin.split("==")[0].lower() for pin in pins}


@each
def test_the_entry_point_is_what_the_manifest_runs(service: str) -> None:
    (entry,) = stages()[service].all("ENTRYPOINT")
    script, subcommand = entry.strip("[]").replace('"', "").split(", ")
    assert script in PROJECT["project"]["scripts"]
    assert subcommand in main.commands
    for container in containers(pod_spec(overlay("cpu"), service)):
        assert [*container["command"], container["args"][0]] == [script, subcommand]
        assert container["image"].split(":")[0] == f"crossdraft-{service}"


@each
def test_ports_are_those_of_the_manifest(service: str) -> None:
    (exposed,) = stages()[service].all("EXPOSE")
    (container,) = pod_spec(overlay("cpu"), service)["containers"]
    assert set(map(int, exposed.split())) == set(ports(container).values())


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@each
def test_the_image_runs_as_the_manifests_user_and_not_as_root(service: str, device: str) -> None:
    users = [rest for stage in lineage(service, device) for rest in stage.all("USER")]
    own = pod_spec(overlay(device), service)["securityContext"]
    assert users[-1] == f"{own['runAsUser']}:{own['runAsGroup']}"
    for container in containers(pod_spec(overlay(device), service)):
        assert container["image"].endswith(f"-{device}")


@each
def test_the_final_stage_has_no_build_tools_but_what_triton_runs(service: str) -> None:
    def installed(device: str) -> str:
        runs = [rest for stage in lineage(service, device) for rest in stage.all("RUN")]
        return " ".join(run for run in runs if "install" in run)

    assert "build" not in {stage.name for stage in lineage(service)}
    assert not any(tool in installed("cpu") for tool in COMPILERS)
    assert "gcc libc6-dev" in installed("gpu")


def compiling(folder: Path) -> list[str]:
    """The image's command that compiles, over this folder in place of its own."""
    runs = [part for rest in stages()["build"].all("RUN") for part in rest.split("&&")]
    (found,) = (shlex.split(run) for run in runs if "compileall" in run)
    assert found[0] == "python" and found[-1] == "/opt/crossdraft"
    return [sys.executable, *found[1:-1], str(folder)]


def test_all_is_compiled_but_torchs_tests_and_what_is_broken_elsewhere_is_reported(
    tmp_path: Path,
) -> None:
    ours, theirs = tmp_path / "common" / "m.py", tmp_path / "torch" / "testing" / "_internal"
    for path, text in ((ours, "x = 1"), (theirs / "py399_syntax.py", "def of another age")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    run = subprocess.run(compiling(tmp_path), capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "")
    assert [path.name.split(".")[0] for path in tmp_path.rglob("*.pyc")] == ["m"]
    ours.with_name("n.py").write_text("def of another age")
    assert subprocess.run(compiling(tmp_path), capture_output=True, check=False).returncode == 1


@pytest.mark.long
def test_no_other_installed_file_is_in_a_newer_python() -> None:
    command = compiling(Path())
    left_out = re.compile(command[command.index("-x") + 1])
    for name in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*.py")):
        if left_out.search(str(name)) is None:
            with warnings.catch_warnings(action="ignore"):
                compile(name.read_bytes(), str(name), "exec", dont_inherit=True)


def test_the_default_device_is_the_cpu() -> None:
    assert instructions()[0] == ("ARG", "DEVICE=cpu")
