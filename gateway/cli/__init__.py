"""The command ``fencegate``: what users and operators type.

Exit codes: 0 done, 1 refused or failed, 2 usage or configuration. Every expected failure is one
line on stderr that names the mend.
"""

from __future__ import annotations

from gateway.cli.main import main

__all__ = ["main"]
