"""A process as a container runtime would start it, as far as this machine can.

With the right to make namespaces (as root, usually) it is process 1 of its own, and sees a
read-only root that holds this Python, the repository and the system's libraries, and the volumes at
their own places; as root it also runs as the container's user, without capabilities. Elsewhere the
volumes' places are replaced by their folders, wherever they are named.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private"]
PATHS = (f"{sys.prefix}/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/sys", "/etc/ssl", "/etc/ld.so.cache")
# $1: the new root; $2: user and group, or nothing; then source, place, ro or rw; --; the command.
SCRIPT = """
set -e
root=$1 user=$2; shift 2
mount -t tmpfs -o mode=0755 tmpfs "$root"
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$(dirname "$root$2")"; : > "$root$2"; fi
  mount --rbind "$1" "$root$2"
  if [ "$3" = ro ]; then mount -o remount,bind,ro "$root$2"; fi
  shift 3
done
shift
mkdir "$root/proc"
mount -t proc proc "$root/proc"
mount -o remount,ro "$root"
if [ -z "$user" ]; then exec chroot "$root" "$@"; fi
exec chroot "$root" setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs \
  --bounding-set=-all --inh-caps=-all -- "$@"
"""


@dataclass(frozen=True)
class Mount:
    """A volume's folder at its place in a container."""

    folder: Path
    place: str
    read_only: bool


@cache
def possible() -> bool:
    """Whether this machine lets us make namespaces."""
    if shutil.which("unshare") is None:
        return False
    run = subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False)
    return run.returncode == 0


class Sandboxed:
    """One process; a context manager that ends it in every case."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        mounts: Sequence[Mount],
        user: int,
        scratch: Path,
    ) -> None:
        scratch.mkdir(parents=True)
        self.log = scratch / "log"
        if possible():
            command = _contained(command, mounts, user, scratch / "root")
        else:
            command = [_translated(word, mounts) for word in command]
            environment = {key: _translated(text, mounts) for key, text in environment.items()}
        self._command = command
        self._environment = {**environment, "PATH": os.pathsep.join(PATHS), "PYTHONPATH": str(ROOT)}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Sandboxed:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command,
                env=dict(self._environment),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            # Itself first: changing its user took it out of --kill-child's reach.
            with suppress(ProcessLookupError, ValueError):
                os.kill(self.pid, signal.SIGKILL)
            self.process.kill()
        self.process.wait()

    @property
    def pid(self) -> int:
        """The process itself, as this machine counts; behind `unshare`, where there is one."""
        assert self.process is not None
        if not possible():
            return self.process.pid
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def status(self) -> dict[str, str]:
        """/proc's lines about it."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)

    def reported(self) -> str:
        return self.log.read_text(errors="replace")


def _contained(command: Sequence[str], mounts: Sequence[Mount], user: int, root: Path) -> list[str]:
    root.mkdir()
    triples: list[str] = []
    for path in filter(os.path.exists, SYSTEM):
        triples += [path, path, "ro"]
    triples += ["/dev", "/dev", "rw"]
    for mount in mounts:
        triples += [str(mount.folder), mount.place, "ro" if mount.read_only else "rw"]
    # After the volumes: a repository under /tmp would be hidden by the container's own.
    for path in dict.fromkeys((str(ROOT), sys.prefix, sys.base_prefix)):
        triples += [path, path, "ro"]
    who = str(user) if os.geteuid() == 0 else ""
    return [*NAMESPACES, "sh", "-c", SCRIPT, "sh", str(root), who, *triples, "--", *command]


def _translated(text: str, mounts: Sequence[Mount]) -> str:
    """Each place by its folder, in one go: a folder's own path may hold another's place."""
    folders = {mount.place: str(mount.folder) for mount in mounts}
    places = "|".join(map(re.escape, folders))
    return re.sub(f"(?<![\\w/])({places})(?![\\w])", lambda found: folders[found[1]], text)
