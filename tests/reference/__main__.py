"""``python3 -m tests.reference``: run all of it and write the table; needs nginx on PATH."""

from __future__ import annotations

import sys

from tests.kit.db import server
from tests.reference.nginx import version
from tests.reference.stage import measured
from tests.reference.table import PAGE, written


def main() -> int:
    found = version()
    if found is None:
        print("install nginx first, e.g. apt-get install nginx-light", file=sys.stderr)
        return 1
    with server() as postgres:
        page = written(PAGE.read_text(encoding="utf-8"), measured(postgres), found)
    PAGE.write_text(page, encoding="utf-8")
    print(f"written: {PAGE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
