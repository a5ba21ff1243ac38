"""The two Java classes that Spark runs for every record, compiled once against the Spark that is installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from livetables.model.errors import SetupError

SOURCES = Path(__file__).parent / "java"
COMPILER_LINES_SHOWN = 5
JDK_CURE = "install a JDK 17 (openjdk-17-jdk-headless), or set JAVA_HOME to one"


def compiled_engine(root: Path, compiler: Callable[[], str], notify: Callable[[str], None]) -> Path:
    """Return the jar of the engine below `root`; compile it if it is missing. Its name has a hash of its sources.

    Jars of other versions stay: another process may be using them, and they are small.
    """
    jar = root.resolve() / "engine" / f"livetables-engine-{_digest()}.jar"
    if jar.is_file():
        return jar
    javac = compiler()
    notify(f"compiling {', '.join(source.name for source in _sources())} into {jar.parent}")
    try:
        jar.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".engine-draft-", dir=jar.parent) as draft:
            classes = Path(draft) / "classes"
            _compile(javac, root, classes)
            packed = Path(draft) / jar.name
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(classes.rglob("*.class")):
                    archive.write(path, path.relative_to(classes))
            packed.rename(jar)  # as a whole: another process may compile it at the same time
    except OSError as error:
        raise SetupError(f"the engine cannot be put into {jar.parent}: {error}", "make it writable") from error
    return jar


def spark_jars() -> Path:
    """Return the directory of Spark's own jars, in the pyspark package.

    Under spark-submit the package is a zip file in $SPARK_HOME/python/lib, without jars.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("pyspark is not installed", "install livetables with its dependencies")
    package = Path(spec.origin).parent
    home = package.parents[3] if package.parent.suffix == ".zip" else package
    return home / "jars"


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.java"))


def _digest() -> str:
    """Return a hash of everything that the classes depend on."""
    digest = hashlib.sha256("\n".join(sorted(path.name for path in spark_jars().glob("spark-sql*.jar"))).encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(javac: str, root: Path, classes: Path) -> None:
    path = os.pathsep.join([f"{spark_jars()}/*", f"{root}/spark/*"])  # Spark's own jars, and those of its Kafka source
    command = [javac, "--release", "17", "-nowarn", "-proc:none", "-cp", path, "-d", str(classes)]
    ended = subprocess.run([*command, *map(str, _sources())], capture_output=True, text=True)
    if ended.returncode != 0:
        output = " ".join([line.strip() for line in ended.stderr.splitlines() if line.strip()][:COMPILER_LINES_SHOWN])
        raise SetupError(
            f"the engine's Java classes cannot be compiled: {output}", f"{JDK_CURE}; nothing was installed"
        )
