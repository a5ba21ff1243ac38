"""Jars by Maven: fetched once, and only those that were tested.

Beside this file are a `pom.xml` for each set, from which Maven knows what belongs to it, and `jars.sha256`, which names
every file with its checksum in the form of sha256sum. Maven uses the user's own mirrors and proxies; no host is
named here. A set in which a file is missing, different or extra is not installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

from livetables.child import spawn
from livetables.locks import locked, wait_for_lock
from livetables.model.errors import SetupError

JarKind = Literal["spark", "broker"]
KINDS: tuple[JarKind, ...] = get_args(JarKind)

DATA = Path(__file__).parent
LIST = DATA / "jars.sha256"
FAULTS_SHOWN = 3
MAVEN_LINES_SHOWN = 5
COPY_INSTEAD = "copy the directory of jars from a machine that has it and set LIVETABLES_JARS to it"


def list_digest() -> str:
    """Return a hash of this list, for the name of a directory."""
    return hashlib.sha256(LIST.read_bytes()).hexdigest()[:16]


def is_complete(kind: JarKind, directory: Path) -> bool:
    """Whether every file of the set is there, by its name: `fetch` checks each before it puts it there."""
    return all((directory / name).is_file() for name in _listed(kind))


def fetch(kind: JarKind, root: Path, notify: Callable[[str], None]) -> Path:
    """Return the directory of a set below `root`, with exactly the listed files. Safe to run in several processes.

    1. Wait for others that fetch the same set, and check whether they have.
    2. Let Maven copy the files into a draft beside the directory.
    3. Check each.
    4. Put the draft in the directory's place.
    """
    directory = root.resolve() / kind
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _held(
            directory.with_suffix(".lock"), lambda: notify(f"waiting for another process that fetches {directory}")
        ):
            if faults(kind, directory):
                _remove_drafts(kind, directory.parent)
                notify(f"fetching the {len(_listed(kind))} {kind} jars with Maven into {directory}")
                with TemporaryDirectory(prefix=_draft_prefix(kind), dir=directory.parent) as draft:
                    jars = copied_by_maven(kind, Path(draft))
                    _check(kind, jars)
                    if directory.exists():
                        directory.rename(Path(draft) / "before")
                    jars.rename(directory)
    except OSError as error:
        raise SetupError(
            f"the {kind} jars cannot be put into {directory}: {error}",
            f"let the directory be writable, or {COPY_INSTEAD}",
        ) from error
    return directory


def copied_by_maven(kind: JarKind, draft: Path) -> Path:
    """Return the directory below `draft` into which Maven has copied the files of the set's pom.xml."""
    maven = shutil.which("mvn")
    if maven is None:
        raise SetupError(
            f"the {kind} jars are not there, and neither is Maven (mvn), which fetches them",
            f"install Maven (the package maven), or {COPY_INSTEAD}",
        )
    shutil.copy(DATA / kind / "pom.xml", draft)  # Maven may write beside it
    jars, log = draft / "jars", draft / "maven.log"
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    process = spawn([maven, "--batch-mode", "--quiet", "--file", str(draft / "pom.xml"), *goal], log)
    try:
        code = process.wait()
    except BaseException:  # Ctrl-C, which does not reach Maven
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    if code != 0:
        raise SetupError(
            f"Maven could not fetch the {kind} jars: {_output(log) or f'it ended with code {code}'}",
            f"check the network, and mirrors and proxies in Maven's settings.xml; or {COPY_INSTEAD}",
        )
    return jars


def checksums(directory: Path) -> dict[str, str]:
    """Return every file of a directory with its SHA-256."""
    found = {}
    for path in sorted(directory.iterdir()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _listed(kind: JarKind) -> dict[str, str]:
    """Return the files of a set as the list has them, by name."""
    entries = (line.split("  ") for line in LIST.read_text().splitlines())
    return {path.removeprefix(f"{kind}/"): digest for digest, path in entries if path.startswith(f"{kind}/")}


def faults(kind: JarKind, directory: Path) -> list[str]:
    """Return the differences between the files of a directory and the list."""
    listed = _listed(kind)
    found = checksums(directory) if directory.is_dir() else {}
    return [
        *(f"{name} is missing" for name in listed if name not in found),
        *(f"{name} is not in the list" for name in found if name not in listed),
        *(f"{name} is another file" for name, digest in found.items() if listed.get(name, digest) != digest),
    ]


def _check(kind: JarKind, jars: Path) -> None:
    if found := faults(kind, jars):
        more = f"; and {len(found) - FAULTS_SHOWN} more" if len(found) > FAULTS_SHOWN else ""
        raise SetupError(
            f"what Maven fetched are not the {kind} jars of this livetables: {'; '.join(found[:FAULTS_SHOWN])}{more}",
            "nothing was installed; remove a damaged file from Maven's local repository, let its settings.xml name a "
            f"mirror that has the original files, or {COPY_INSTEAD}",
        )


def _output(log: Path) -> str:
    """Return Maven's first error as one line, without the password that a mirror's address may have."""
    output = [line.removeprefix("[ERROR] ").strip() for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in output if line and line != "[ERROR]"][:MAVEN_LINES_SHOWN]
    return re.sub(r"://[^/@\s]*@", "://", " ".join(lines))


def _draft_prefix(kind: JarKind) -> str:
    return f".{kind}-draft-"


def _remove_drafts(kind: JarKind, root: Path) -> None:
    """Remove what a process that was killed left."""
    for left in root.glob(f"{_draft_prefix(kind)}*"):
        shutil.rmtree(left)


@contextmanager
def _held(lock: Path, must_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a lock of the operating system, which is released when the process is killed."""
    with lock.open("a") as file:
        if not locked(file):
            must_wait()
            wait_for_lock(file)
        yield
