"""What livetables needs of the machine: Python, Java, jars, memory, disk, open files."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from livetables.config.values import Config
from livetables.doctor.check import Facts, Finding
from livetables.jvm.fetch import JarKind, faults
from livetables.jvm.jars import engine_jar, jar_directory, java_executable
from livetables.model.errors import SetupError

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

JAVA_LEAST = 17
JAVA_SECONDS_MAX = 10.0
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)([^;]*)")  # without a condition: what is always needed
SPECIFIER = re.compile(r"(==|>=|<)\s*([\d.]+)")
JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')
MEGABYTE = 1024 * 1024
JVM_EXTRA_MEGABYTES = 512  # of Spark's JVM and its Python beside the heap
BROKER_MEGABYTES = 512
DISK_LEAST_MEGABYTES, DISK_WELL_MEGABYTES = 200, 2048
OPEN_FILES_WELL = 4096


def python(_: Facts) -> Sequence[Finding]:
    wanted = [match for line in metadata.requires("livetables") or () if (match := REQUIREMENT.fullmatch(line))]
    installed = {match[1]: _installed(match[1]) for match in wanted}
    name, found = "Python", f"{platform.python_version()} at {sys.executable}"
    if missing := [package for package, version in installed.items() if version is None]:
        cure = "install livetables again, with all that it depends on"
        return [Finding(name, "broken", f"{found}, without {', '.join(missing)}", cure)]
    ranges = {match[1]: match[2].strip() for match in wanted}
    others = [
        f"{package} {version} (not {ranges[package]})"
        for package, version in installed.items()
        if version and not is_within(version, ranges[package])
    ]
    if others:
        cure = "install versions within the ranges that livetables asks for; others may work"
        return [Finding(name, "warning", f"{found}, with {', '.join(others)}", cure)]
    return [Finding(name, "ok", f"{found}, livetables {metadata.version('livetables')}, {len(wanted)} packages")]


def java(facts: Facts) -> Sequence[Finding]:
    executable = java_executable()
    try:
        output = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS_MAX, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        why = f"{executable} -version does not work: {error}"
        raise SetupError(why, f"install Java {JAVA_LEAST} (openjdk-{JAVA_LEAST}-jdk-headless)") from None
    match = JAVA_VERSION.search(output)
    found = f"{match[1]}{match[2]} at {executable}" if match else f"{output.partition(chr(10))[0]} at {executable}"
    on_path = shutil.which("java", path=facts.environ.get("PATH", ""))
    if facts.environ.get("JAVA_HOME"):
        is_another = on_path is not None and Path(on_path).resolve() != Path(executable).resolve()
        found += ", by JAVA_HOME" + (f" (the one on the PATH is another: {on_path})" if is_another else "")
    if match is None or int(match[1]) < JAVA_LEAST:
        cure = f"install Java {JAVA_LEAST} or newer, and set JAVA_HOME to it if there are several"
        return [Finding("Java", "broken", f"{found} is too old", cure)]
    return [Finding("Java", "ok", found)]


def jars(facts: Facts) -> Sequence[Finding]:
    findings = []
    for kind in _jar_kinds(facts.config):
        name = f"{kind} jars"
        try:
            directory = jar_directory(kind)
        except SetupError as error:
            findings.append(Finding(name, "broken", error.problem, error.cure))
            continue
        if found := faults(kind, directory):
            cure = f"remove {directory} and have the jars fetched again (`python -m livetables.jvm` does it too)"
            findings.append(Finding(name, "broken", f"in {directory}, {'; '.join(found)}", cure))
        else:
            findings.append(Finding(name, "ok", f"in {directory}"))
    try:
        findings.append(Finding("engine", "ok", f"compiled for this Spark: {engine_jar()}"))
    except SetupError as error:
        findings.append(Finding("engine", "broken", error.problem, error.cure))
    return findings


def memory(facts: Facts) -> Sequence[Finding]:
    config = facts.sound_config
    wanted = config.pipeline.driver_memory_megabytes + JVM_EXTRA_MEGABYTES + config.server.memory_megabytes
    wanted += BROKER_MEGABYTES if config.kafka.bootstrap_servers is None else 0
    total, available, swap = _memory_megabytes()
    if total is None:
        return [Finding("memory", "ok", f"{_size(wanted)} may be needed; how much there is cannot be read here")]
    found = f"{_size(wanted)} may be needed of {_size(total)}"
    cure = "give the machine more, or set pipeline.driver_memory_megabytes and server.memory_megabytes lower"
    if wanted > total:
        return [Finding("memory", "warning", found, cure)]
    if available is not None and wanted > available and facts.running is None:
        beyond = f"{found}, but {_size(available)} are free" + ("" if swap else ", and there is no swap")
        return [Finding("memory", "warning", beyond, f"end what else runs here, or: {cure}")]
    return [Finding("memory", "ok", found + ("" if available is None else f", {_size(available)} are free"))]


def disk(facts: Facts) -> Sequence[Finding]:
    """Whether tables and checkpoints can be written, and have room."""
    config = facts.sound_config
    places = {"store": config.server.store, "checkpoints": config.pipeline.checkpoint_directory}
    settings = {"store": "server.store", "checkpoints": "pipeline.checkpoint_directory"}
    return [_place(what, path, settings[what]) for what, path in places.items()]


def open_files(_: Facts) -> Sequence[Finding]:
    if resource is None:
        return [Finding("open files", "ok", "this system has no limit")]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_WELL:
        return [Finding("open files", "ok", "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,} at most")]
    cure = f"run `ulimit -n {65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)}` before the start, "
    cure += "or set LimitNOFILE in the service's unit: each browser and each part of the state needs one"
    return [Finding("open files", "warning", f"{soft:,} at most", cure)]


def is_within(version: str, specifiers: str) -> bool:
    """Whether a version is in a range like `>=2.0.1,<3`; what is before or after its release number does not count."""
    release = _release(version)
    for operator, bound in SPECIFIER.findall(specifiers):
        limit = _release(bound)
        if not {"==": release == limit, ">=": release >= limit, "<": release < limit}[operator]:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version; 2.0 and 2.0.0 are the same."""
    numbers = [int(number) for number in re.findall(r"\d+", (re.match(r"[\d.]*", version) or [""])[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _jar_kinds(config: Config | None) -> tuple[JarKind, ...]:
    return ("spark", "broker") if config and config.kafka.bootstrap_servers is None else ("spark",)


def _place(what: str, path: str, setting: str) -> Finding:
    if "://" in path or path == ":memory:":
        return Finding(what, "ok", f"{path} is not on a disk of this machine")
    wanted = Path(path).absolute() if what == "checkpoints" else Path(path).absolute().parent
    there = next(parent for parent in (wanted, *wanted.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        cure = f"give this user the right to write there, or choose another place with {setting}"
        return Finding(what, "broken", f"{there} cannot be written: {error.strerror}", cure)
    free = shutil.disk_usage(there).free // MEGABYTE
    found = f"{path} can be written, {_size(free)} are free there"
    cure = f"make room, or choose another place with {setting}"
    if free < DISK_LEAST_MEGABYTES:
        return Finding(what, "broken", found, cure)
    return Finding(what, "ok", found) if free >= DISK_WELL_MEGABYTES else Finding(what, "warning", found, cure)


def _memory_megabytes() -> tuple[int | None, int | None, int]:
    """All memory, what is free of it, and the swap, as Linux and its container report it; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None, None, 0
    memory = {name: int(rest.split()[0]) // 1024 for name, _, rest in (line.partition(":") for line in lines)}
    total, available = memory["MemTotal"], memory.get("MemAvailable")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            total = min(total, int(limit) // MEGABYTE)
    except (OSError, ValueError):
        pass
    return total, available, memory.get("SwapTotal", 0)


def _size(megabytes: int) -> str:
    return f"{megabytes / 1024:.1f} GB" if megabytes >= 1024 else f"{megabytes} MB"
