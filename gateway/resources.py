"""Where the files that ship beside the code are: in a checkout and in an installed wheel.

In a checkout they lie next to the package (`migrations/`); the wheel carries them inside it
(`gateway/_migrations/`). The callers need not know which of the two they run from.
"""

from pathlib import Path

__all__ = ["examples_dir", "migrations_dir", "policies_dir"]

_PACKAGE = Path(__file__).resolve().parent


def migrations_dir() -> Path:
    """Folder of the schema's `NNNN_name.sql` files."""
    return _shipped("migrations")


def policies_dir() -> Path:
    """Folder of the policies that ship with the product."""
    return _shipped("policies")


def examples_dir() -> Path:
    """Folder of the examples that the documentation and the demo use."""
    return _shipped("examples")


def _shipped(name: str) -> Path:
    """Raise `FileNotFoundError` if this is neither a checkout nor a complete installation."""
    for candidate in (_PACKAGE / f"_{name}", _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(
        f"the folder {name!r} that ships with Fencegate is missing beside {_PACKAGE}; "
        "reinstall the package: pip install --force-reinstall fencegate"
    )
