"""`python -m livetables.jvm DIRECTORY`: put every jar into a directory that LIVETABLES_JARS can name."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from livetables.jvm.engine import compiled_engine
from livetables.jvm.fetch import KINDS, LIST, checksums, copied_by_maven, fetch
from livetables.jvm.jars import java_compiler, java_executable
from livetables.model.errors import LivetablesError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m livetables.jvm", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("directory", nargs="?", type=Path, metavar="DIRECTORY", help="where the jars shall be")
    chosen.add_argument("--list", action="store_true", help=f"write {LIST.name} anew, after a change of a pom.xml")
    arguments = parser.parse_args()
    try:
        java_executable()  # Maven needs it too, with a worse error message
        if arguments.list:
            write_list()
        else:
            notify = partial(print, flush=True)
            for kind in KINDS:
                fetch(kind, arguments.directory, notify)
            compiled_engine(arguments.directory, java_compiler, notify)
    except LivetablesError as error:
        print(f"livetables: {error.problem}\n  cure: {error.cure}", file=sys.stderr)
        return 2
    return 0


def write_list() -> None:
    """Return the list of the files that Maven fetches now."""
    lines = []
    for kind in sorted(KINDS):
        with TemporaryDirectory() as draft:
            lines += [
                f"{digest}  {kind}/{name}\n" for name, digest in checksums(copied_by_maven(kind, Path(draft))).items()
            ]
    LIST.write_text("".join(lines))


if __name__ == "__main__":
    sys.exit(main())
