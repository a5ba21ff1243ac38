"""The services, and the image, as far as they can be checked without systemd running and without containers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    assert len(UNITS) == 2
    for unit in UNITS:  # it also looks whether the program is there
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/livetables/bin/livetables", "/bin/true"))
    command = ["systemd-analyze", "verify", *(str(tmp_path / unit.name) for unit in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_units_confine_both_services_alike() -> None:
    one, other = (re.split(r"^UMask", unit.read_text(), flags=re.MULTILINE)[1] for unit in UNITS)
    assert one == other


def test_the_image_runs_without_root_and_names_no_registry() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER livetables"]
    images = {line.split()[1] for line in lines if line.startswith("FROM ")}
    assert images
    assert not any("/" in image for image in images)
