"""Where the Java side is: the directories of jars, and the `java` that runs them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

from livetables.errors import SetupError

JarKind = Literal["spark", "broker"]

JARS_VARIABLE = "LIVETABLES_JARS"


def jar_directory(kind: JarKind) -> Path:
    """The directory with the jars of `kind`: in $LIVETABLES_JARS if that is set, else in the project's `.jars`."""
    configured = os.environ.get(JARS_VARIABLE)
    if configured:
        directory = Path(configured).resolve() / kind
        if not _has_jars(directory):
            raise SetupError(
                f"{JARS_VARIABLE} is {configured}, but there are no jars in {directory}",
                f"unset {JARS_VARIABLE}, or set it to a directory made by `make .jars/ready`",
            )
        return directory
    for parent in Path(__file__).resolve().parents:
        directory = parent / ".jars" / kind
        if _has_jars(directory):
            return directory
    raise SetupError(
        f"the {kind} jars are not there",
        f"run `make .jars/ready` in the project's directory, or set {JARS_VARIABLE} to where its `.jars` is",
    )


def java_executable() -> str:
    """The `java` to run: the one of $JAVA_HOME if that is set, else the first on the PATH."""
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
            "install Java 17 (openjdk-17-jre-headless), or set JAVA_HOME to where it is",
        )
    return found


def _has_jars(directory: Path) -> bool:
    return any(directory.glob("*.jar"))
