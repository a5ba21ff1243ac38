"""The documentation is true: its links lead somewhere, and every command in it is run by a test."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from livetables.config.load import SERVER_KEYS
from livetables.tls import ServerCertificate
from tests.support.pages import ROOT, Block, blocks, pages

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
LANGUAGES = {"sh", "python", "toml", "json", "ts", "text", "yaml", "properties"}

# A self-signed certificate, as an operator makes it.
OPENSSL = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem -days 365 "
    '-subj /CN=livetables -addext "subjectAltName=IP:127.0.0.1,DNS:localhost"'
)
# Pages whose blocks a test follows from top to bottom.
FOLLOWED = {"README.md": "tests/local/test_system.py", "docs/TUTORIAL.md": "tests/docs/test_tutorial.py"}
# Commands that are run elsewhere, and where.
ELSEWHERE = {
    OPENSSL: "test_the_certificate_is_one_that_clients_take",
    "make demo": "tests/local/test_system.py runs what it runs, see below",
    "make test": "CI runs it",
    "make check": "a part of `make test`",
    "make wheel": "tests/wheels/test_installed.py",
    "python3 -m venv shop": "tests/wheels/test_installed.py",
    "shop/bin/pip install dist/livetables-0.1.0-py3-none-any.whl": "tests/wheels/test_installed.py",
    ". shop/bin/activate": "tests/wheels/test_installed.py",
    ". .venv/bin/activate": "what tests have on their path already",
}
# Pages that follow the code, and where the files that they name may be.
FOLLOWING = ("docs/ARCHITECTURE.md", "docs/GENERATIONS.md", "CONTRIBUTING.md")
ROOTS = (ROOT, ROOT / "src" / "livetables")
SOURCE_FILE = re.compile(r"[*`]([\w./-]+\.(?:py|java|ts))[*`]")
STEP_FILE = re.compile(r"\*\*([\w./-]+\.(?:py|java|ts))\*\*")


def all_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks(page)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if not target.startswith(("http:", "https:"))]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    linked = {(ROOT / "docs" / target).resolve() for target in LINK.findall(index)}
    others = {*ROOT.glob("docs/*.md"), *ROOT.glob("web/*/README.md")} - {ROOT / "docs" / "README.md"}
    assert sorted(others - linked) == []


@pytest.mark.parametrize("page", FOLLOWING)
def test_every_file_of_the_code_that_a_page_names_is_there(page: str) -> None:
    named = SOURCE_FILE.findall((ROOT / page).read_text())
    assert named
    assert [name for name in named if not any((root / name).is_file() for root in ROOTS)] == []


@pytest.mark.parametrize("way", ["A record", "A control message"])
def test_a_way_through_the_code_never_comes_back_to_a_file_and_counts_them_right(way: str) -> None:
    sections = (ROOT / "docs" / "ARCHITECTURE.md").read_text().split("\n## ")
    (section,) = (section for section in sections if section.startswith(f"{way}, "))
    files = STEP_FILE.findall(section)
    assert [name for position, name in enumerate(files) if name in files[:position]] == []
    (count,) = re.findall(rf"^{way} passes (\d+) files", section, re.MULTILINE)
    assert int(count) == len(files)


def test_every_block_says_what_it_is() -> None:
    assert [f"{block} {block.language}" for block in all_blocks() if block.language not in LANGUAGES] == []


def test_every_command_is_run() -> None:
    shell = [block for block in all_blocks() if block.language == "sh" and block.page not in FOLLOWED]
    assert [f"{block}: {line}" for block in shell for line in block.commands if line not in ELSEWHERE] == []


def test_every_page_that_is_followed_is_there() -> None:
    for page, test in FOLLOWED.items():
        assert any(block.page == page and block.language == "sh" for block in all_blocks())
        assert Path(page).name in (ROOT / test).read_text()


def test_the_demo_is_what_the_tests_of_the_system_run() -> None:
    recipe = re.search(r"^demo:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    assert recipe[1] == "@$(BIN)/livetables up --demo"


def test_the_certificate_is_one_that_clients_take(tmp_path: Path) -> None:
    subprocess.run(shlex.split(OPENSSL), cwd=tmp_path, capture_output=True, check=True)
    made = ServerCertificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    assert (made.flaw("127.0.0.1"), made.flaw("localhost")) == (None, None)


def test_the_login_names_settings_that_exist() -> None:
    login = (ROOT / "web" / "app" / "src" / "app" / "shell" / "login.ts").read_text()
    template = login.partition("template: `")[2].partition("`,")[0]
    named = re.findall(r"<code>([^<]*)</code>", template)
    settings = {"LIVETABLES_TOKEN", *(f"server.{key}" for key in SERVER_KEYS)}
    assert named
    assert [name for name in named if name not in settings] == []


def test_the_version_is_the_same_everywhere() -> None:
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert f"## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert f"livetables-{version}-py3-none-any.whl" in (ROOT / "docs" / "TUTORIAL.md").read_text()
