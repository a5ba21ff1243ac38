"""Where the Java side is: the directories of jars, and the `java` that runs them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from livetables.jvm.engine import JDK_CURE, compiled_engine
from livetables.jvm.fetch import JarKind, fetch, is_complete, list_digest
from livetables.model.errors import SetupError

JARS_VARIABLE = "LIVETABLES_JARS"
CHECKOUT = Path(__file__).resolve().parents[3]  # of an installed package, a directory without `.jars`


def _notify(step: str) -> None:
    print(step, file=sys.stderr, flush=True)


def jar_directory(kind: JarKind, notify: Callable[[str], None] = _notify) -> Path:
    """Return the directory with the jars of `kind`.

    It is in $LIVETABLES_JARS if that is set, in the project's `.jars`, or else in the user's cache, where they are
    fetched the first time that they are needed.
    """
    configured = os.environ.get(JARS_VARIABLE)
    if configured:
        directory = Path(configured).resolve() / kind
        if not _has_jars(directory):
            raise SetupError(
                f"{JARS_VARIABLE} is {configured}, but there are no jars in {directory}",
                f"unset {JARS_VARIABLE}, or fill it with `python -m livetables.jvm {configured}`",
            )
        return directory
    if _has_jars(CHECKOUT / ".jars" / kind):
        return CHECKOUT / ".jars" / kind
    root = _cached()
    if is_complete(kind, root / kind):
        return root / kind
    java_executable()  # Maven needs it too, with a worse error message
    return fetch(kind, root, notify)


def engine_jar(notify: Callable[[str], None] = _notify) -> Path:
    """Return the jar with the classes that Spark runs for every record, beside the other jars; compile it if needed."""
    return compiled_engine(_root(), java_compiler, notify)


def java_compiler() -> str:
    """Return the `javac` to use: the one of $JAVA_HOME if that is set, else the first on the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("javac", path=str(Path(home) / "bin")) if home else shutil.which("javac")
    if found is None:
        raise SetupError("there is no Java compiler (javac): this Java is a JRE, or there is none", JDK_CURE)
    return found


def java_executable() -> str:
    """Return the `java` to run: the one of $JAVA_HOME if that is set, else the first on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not os.access(executable, os.X_OK):
            raise SetupError(
                f"JAVA_HOME is {home}, but {executable} is not a program",
                "set JAVA_HOME to the directory of a Java 17, or unset it to use the java on the PATH",
            )
        return str(executable)
    found = shutil.which("java")
    if found is None:
        raise SetupError(
            "there is no java on the PATH",
            "install Java 17 (openjdk-17-jdk-headless), or set JAVA_HOME to where it is",
        )
    return found


def _root() -> Path:
    """Return the directory of this installation's jars."""
    if configured := os.environ.get(JARS_VARIABLE):
        return Path(configured)
    in_checkout = CHECKOUT / ".jars"
    return in_checkout if _has_jars(in_checkout / "spark") else _cached()


def _cached() -> Path:
    return _cache() / "livetables" / "jars" / list_digest()


def _cache() -> Path:
    """Return the user's cache directory."""
    configured = os.environ.get("XDG_CACHE_HOME")
    return Path(configured) if configured else Path.home() / ".cache"


def _has_jars(directory: Path) -> bool:
    return any(directory.glob("*.jar"))
