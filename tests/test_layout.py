"""Who may import whom, and who may look outside: the architecture's rules, held by the syntax tree.

Imports are followed wherever they stand: in functions and under TYPE_CHECKING too. A package is a directory with
modules. A module that lies beside packages (`server/main.py`, and everything at the top) stands for itself: it may be
above them or below them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import livetables

PACKAGE = Path(livetables.__file__).parent
TESTS = Path(__file__).parent

# What decides: values in, values out. Neither these nor anything that they import does I/O.
PURE = (
    "config.declarations",
    "config.settings",
    "config.values",
    "formats.json",
    "model.change",
    "model.checksum",
    "model.columns",
    "model.control_message",
    "model.errors",
    "model.joins",
    "model.spec",
    "model.wire",
    "pipeline.control.resolve",
    "pipeline.flow.modes",
    "pipeline.flow.plan",
    "pipeline.generations.health",
    "pipeline.generations.state",
    "pipeline.generations.wanted",
    "pipeline.reporting.pace",
    "pipeline.reporting.status",
    "server.access.logins",
    "server.access.origins",
    "server.health.freshness",
    "server.live.delta_log",
    "server.live.protocol",
    "server.storage.frames",
    "server.storage.horizons",
    "server.viewports.order",
    "server.viewports.predicate",
    "server.viewports.row",
    "server.viewports.viewport",
    "server.viewports.window",
)
DOES_IO = ("asyncio", "confluent_kafka", "http", "py4j", "pyspark", "socket", "ssl", "subprocess", "urllib.request")

# Packages that may be imported from (nearly) everywhere, and the only ones that they import themselves.
FOUNDATIONS = {"model": {"model"}, "formats": {"formats", "model"}}

# Who never imports whom.
APART = [
    ("pipeline", "server"),
    ("server", "pipeline"),
    *(("client", other) for other in ("server", "pipeline", "kafka", "jvm", "local", "demo", "doctor", "init")),
]

# Names of column types and join kinds that are no words of anything else, and the modules that may have them: everybody
# else asks `model/columns.py` and `model/joins.py` for what depends on a type or join, so that a new one is one file.
NAMES_OF_KINDS = ("int64", "double", "bool", "inner", "natural", "asof")
KNOWS_NAMES: Mapping[str, str] = {
    "model.columns": "describes the column types",
    "model.joins": "describes the join kinds",
    "formats.json": "which values of a record format a type takes is the format's own",
    "config.declarations": "a preset has the name of its join",
}

# Modules without a test file of their name, by the one that is about them.
TESTED_BY: Mapping[str, str] = {
    "cli/test_control.py": "client.control",
    "cli/test_doctor.py": "doctor.service",
    "cli/test_reading.py": "cli.latency cli.rendering cli.sql cli.tables cli.tail",
    "cli/test_serve.py": "server.main",
    "cli/test_status.py": "cli.options",
    "client/test_connection.py": "client.html client.http client.table",
    "client/test_follow.py": "client.changes client.flight",
    "config/test_load.py": "config.declarations config.settings config.values model.spec",
    "demo/test_sender.py": "cli.demo_data demo.records",
    "doctor/test_kafka.py": "doctor.sampling jvm.gateway kafka.inspection",
    "init/test_inference.py": "formats.json init.document",
    "jvm/test_fetch.py": "child jvm.jars",
    "kafka/test_topics.py": "kafka.clients kafka.error_catalogue kafka.redaction",
    "local/test_lock.py": "client.local_system",
    "local/test_system.py": "cli.signals",
    "model/test_wire.py": "model.change",
    "pipeline/control/test_orchestrator.py": "pipeline.generations.supervision",
    "pipeline/control/test_resolve.py": "pipeline.generations.wanted",
    "pipeline/flow/test_query.py": "pipeline.flow.match pipeline.flow.source",
    "pipeline/generations/test_generation.py": "pipeline.generations.context pipeline.generations.query_run",
    "pipeline/reporting/test_status_tables.py": "pipeline.reporting.status",
    "server/access/test_endpoints.py": "server.api.asgi",
    "server/api/test_flight.py": (
        "server.api.flight_actions server.api.flight_errors server.api.flight_streams server.api.flight_tickets"
    ),
    "server/api/test_http.py": (
        "server.api.gate server.api.http_control server.api.http_health server.api.http_operations "
        "server.api.http_page server.api.http_sql server.api.http_tables server.api.messages server.api.services"
    ),
    "server/api/test_intake.py": "server.api.http_frames server.storage.staging",
    "server/live/test_hub.py": "server.live.delta_log server.live.state",
    "server/live/test_session.py": "server.live.connection server.live.sessions server.live.subscription",
    "server/relays/test_main.py": "server.relays.handover server.relays.messages",
    "server/storage/test_frames.py": "server.storage.merge",
    "server/storage/test_feed.py": "server.storage.changes",
    "server/storage/test_pending.py": "server.storage.writer",
    "server/storage/test_planner.py": "server.storage.plan_process",
    "server/storage/test_sql.py": "server.storage.query server.storage.reader",
    "server/storage/test_retention.py": (
        "server.storage.horizons server.storage.trimming server.storage.unknown_fields"
    ),
    "server/storage/test_store.py": (
        "server.storage.batches server.storage.catalogue server.storage.draft server.storage.generation "
        "server.storage.listeners"
    ),
    "server/storage/test_store_failure.py": "server.storage.database",
    "pipeline/control/test_decisions.py": "pipeline.control.system",
    "pipeline/test_server_client.py": "pipeline.table_server",
    "pipeline/test_fencing.py": "pipeline.process server.storage.fencing server.storage.holding",
    "server/access/test_roles.py": "model.roles server.viewports.masking",
    "server/access/test_strangers.py": "server.api.front",
    "test_windows.py": "locks",
}
# Modules that no test is about, and why.
UNTESTED: Mapping[str, str] = {
    "server.storage.context": "a value without code",
    "server.live.serving": "protocols: types without code",
}


def module_name(path: Path) -> str:
    """The module of a file, without `livetables` before it; that of the package itself is empty."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(source: str, package: str) -> Iterator[str]:
    """Every module that source imports, and every name it imports from one, in full."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@cache
def imports_of(module: str) -> frozenset[str]:
    """Everything that a module of ours imports, in full."""
    path = MODULES[module]
    return frozenset(imported(path.read_text(), ".".join(["livetables", *path.relative_to(PACKAGE).parent.parts])))


def ours_among(names: Iterable[str]) -> set[str]:
    """The modules of ours that names stand for. Of `from package import module` only the module counts."""
    found = {name.removeprefix("livetables").removeprefix(".") for name in names if is_within(name, "livetables")}
    found &= MODULES.keys()
    return {name for name in found if not any(other != name and is_within(other, name) for other in found)}


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def package_of(module: str) -> str:
    """The package that a module counts for, or the module where that lies beside packages."""
    path = MODULES[module]
    beside_packages = any(each.name == "__init__.py" for each in path.parent.glob("*/*.py"))
    if path.name == "__init__.py" or beside_packages:
        return module
    return module.rpartition(".")[0]


def package_graph() -> dict[str, set[str]]:
    """Which package imports which."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        package = package_of(module)
        others = {package_of(other) for other in ours_among(imports_of(module))}
        graph.setdefault(package, set()).update(others - {package})
    return graph


def reached_from(module: str) -> dict[str, str]:
    """Every module of ours that importing this one may load, and by whom."""
    reached, waiting = {module: module}, [module]
    while waiting:
        importer = waiting.pop()
        for other in sorted(ours_among(imports_of(importer)) - reached.keys()):
            reached[other] = importer
            waiting.append(other)
    return reached


def reads_environment(source: str) -> bool:
    """Whether source reads the environment; to set a variable for a child is not to read one."""
    tree = ast.parse(source)
    assigned = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
    }
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and id(node) not in assigned)
    names = {f"{node.value.id}.{node.attr}" for node in attributes if isinstance(node.value, ast.Name)}
    return bool({"os.environ", "os.environb", "os.getenv"} & names.union(imported(source, "")))


def names_of_kinds(source: str) -> set[str]:
    """The names of column types and join kinds that source has as literals."""
    values = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
    return {name for name in NAMES_OF_KINDS if name in values}


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_packages_form_no_cycle() -> None:
    assert cycle_in(package_graph()) == []


def test_modules_form_no_cycle() -> None:
    assert cycle_in({module: ours_among(imports_of(module)) - {module} for module in MODULES}) == []


@pytest.mark.parametrize("package", FOUNDATIONS)
def test_model_and_formats_import_nothing_above_them(package: str) -> None:
    modules = [module for module in MODULES if is_within(module, package)]
    assert modules
    above = [
        f"{module} imports {other}"
        for module in modules
        for other in ours_among(imports_of(module))
        if other.partition(".")[0] not in FOUNDATIONS[package]
    ]
    assert above == []


@pytest.mark.parametrize(("importer", "other"), APART)
def test_processes_and_the_client_stay_apart(importer: str, other: str) -> None:
    assert importer in MODULES
    assert other in MODULES
    offenders = [
        f"{module} imports {name}"
        for module in MODULES
        if is_within(module, importer)
        for name in ours_among(imports_of(module))
        if is_within(name, other)
    ]
    assert offenders == []


def test_nothing_imports_the_command_line_but_itself() -> None:
    offenders = [
        f"{module} imports {name}"
        for module in MODULES
        if not is_within(module, "cli")
        for name in ours_among(imports_of(module))
        if is_within(name, "cli")
    ]
    assert offenders == []


def test_only_config_jars_and_the_command_line_read_the_environment() -> None:
    offenders = [
        module
        for module, path in MODULES.items()
        if not is_within(module, "config") and not is_within(module, "cli") and module != "jvm.jars"
        if reads_environment(path.read_text())
    ]
    assert offenders == []


@pytest.mark.parametrize("module", PURE)
def test_what_decides_does_no_io_nor_does_what_it_imports(module: str) -> None:
    reached = reached_from(module)
    offenders = [
        f"{other} (imported by {importer}) imports {name}"
        for other, importer in reached.items()
        for name in imports_of(other)
        if any(is_within(name, io) for io in DOES_IO)
    ]
    assert offenders == []
    assert [other for other in reached if reads_environment(MODULES[other].read_text())] == []


def test_a_column_type_or_a_join_is_described_in_one_file() -> None:
    known = {module: names for module, path in MODULES.items() if (names := names_of_kinds(path.read_text()))}
    assert {module: names for module, names in known.items() if module not in KNOWS_NAMES} == {}
    assert KNOWS_NAMES.keys() - known.keys() == set(), "excused, but without such a name"


def own_test(module: str) -> Path:
    *packages, name = module.split(".")
    return TESTS.joinpath(*packages, f"test_{name}.py")


def test_every_module_has_its_test_file_or_a_reason() -> None:
    excused = {module for modules in TESTED_BY.values() for module in modules.split()} | UNTESTED.keys()
    with_code = {module for module, path in MODULES.items() if path.name not in ("__init__.py", "__main__.py")}
    without_test = {module for module in with_code if not own_test(module).exists()}
    assert sorted(without_test - excused) == []
    assert sorted(excused - without_test) == [], "excused, but with a test file of its own, or not there"


def test_the_test_files_of_modules_without_their_own_are_there() -> None:
    assert [name for name in TESTED_BY if not (TESTS / name).exists()] == []


@pytest.mark.parametrize(
    "source",
    [
        "import livetables.server.main",
        "from livetables.server.main import serve",
        "from livetables import server",
        "from ..server import main",
        "from .. import server",
        "def late():\n    import livetables.server",
        "if TYPE_CHECKING:\n    from livetables.server.main import serve",
    ],
)
def test_the_rules_see_every_way_to_import(source: str) -> None:
    assert any(is_within(name, "server") for name in ours_among(imported(source, "livetables.pipeline")))


@pytest.mark.parametrize(
    "source",
    [
        "TYPES = {'int64': 1}",
        "kind == 'asof'",
        "match kind:\n    case 'bool':\n        pass",
        "Literal['inner', 'left']",
    ],
)
def test_the_rules_see_every_way_to_name_a_type_or_join(source: str) -> None:
    assert names_of_kinds(source)


@pytest.mark.parametrize(
    ("graph", "has_cycle"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, False),
        ({"a": {"b"}, "b": {"a"}}, True),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, True),
    ],
)
def test_the_rules_see_a_cycle(graph: dict[str, set[str]], has_cycle: bool) -> None:
    assert bool(cycle_in(graph)) == has_cycle


@pytest.mark.parametrize(
    "source", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ", "{**os.environ}"]
)
def test_the_rules_see_every_way_to_read_the_environment(source: str) -> None:
    assert reads_environment(source)


def test_the_rules_let_a_variable_be_set() -> None:
    assert not reads_environment("import os\nos.environ['A'] = 'b'")
