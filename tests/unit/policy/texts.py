"""Policy files that the tests share."""

from __future__ import annotations

__all__ = ["command", "policy"]


def command(
    match: str = "POST /v1/accounts/{account}/charges",
    entity: str = "account:{path.account}",
    name: str = "charge",
    more: str = "",
) -> str:
    """One command as TOML; ``more``: further lines."""
    return f"[[commands]]\nname = '{name}'\nmatch = '{match}'\nentity = '{entity}'\n{more}\n"


def policy(*commands: str, name: str = "payments", mount: str = "/pay", more: str = "") -> str:
    """One file as TOML; ``more``: further top-level lines."""
    head = f"name = '{name}'\nmount = '{mount}'\nupstream = 'https://api.example'\n{more}\n"
    return head + "".join(commands or (command(),))
