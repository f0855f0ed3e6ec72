"""``${NAME}`` in fields that a policy sets. What the environment holds never reaches an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gateway.policy.errors import PolicyError

__all__ = ["mistakes", "substitute"]

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

# RFC 9110 §5.5: visible ASCII with inner blanks. Other bytes are legal and never needed here.
_VALUE = re.compile(r"[!-~]+(?:[ \t]+[!-~]+)*")


def substitute(text: str, env: Mapping[str, str]) -> str:
    """``text`` with each reference replaced; ``mistakes`` has found nothing."""
    return _REFERENCE.sub(lambda match: env[match[1]], text)


def mistakes(
    file: str, headers: object, env: Mapping[str, str], at: str = "upstream_headers"
) -> Iterator[PolicyError]:
    """Each header value of a raw table of fields that cannot be made; ``at``: where it stands."""
    for name, text in headers.items() if isinstance(headers, dict) else ():
        if not isinstance(text, str):
            continue
        path = f"{at}.{name}"
        missing = sorted({ref for ref in _REFERENCE.findall(text) if not env.get(ref)})
        for variable in missing:
            state = "empty" if variable in env else "not set"
            yield PolicyError(
                file, path, f"the environment variable {variable} is {state}", f"set {variable}"
            )
        if "${" in _REFERENCE.sub("", text):
            yield PolicyError(
                file, path, "holds a reference that does not end or has no name", "write ${NAME}"
            )
        elif not missing and not _VALUE.fullmatch(substitute(text, env)):
            yield PolicyError(
                file,
                path,
                "is not a field value once its variables are filled in",
                "use visible ASCII without line ends or blanks around it; check each variable "
                "for a trailing line end",
            )
