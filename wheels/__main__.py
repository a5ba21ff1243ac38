"""`python -m wheels [DIRECTORY]`: both wheels into a directory, `dist` if none is given."""

from __future__ import annotations

import sys
from pathlib import Path

from wheels.build import PAGE, WheelError, build_client, build_full


def main() -> int:
    destination = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    try:
        for wheel in (build_full(destination, PAGE), build_client(destination)):
            print(f"{wheel}  {wheel.stat().st_size / 1e3:,.0f} kB")
    except WheelError as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
