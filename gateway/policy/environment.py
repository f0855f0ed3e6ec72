"""``${NAME}`` in fields that a policy sets: from the environment, or from the file that
``NAME_FILE`` names there, as container platforms hand out secrets. No value ever reaches an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gateway.core.headers import folded
from gateway.filed import NotRead, read_secret
from gateway.policy.errors import PolicyError

__all__ = ["Variables", "mistakes"]

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

# RFC 9110 §5.5: visible ASCII with inner blanks. Other bytes are legal and never needed here.
_VALUE = re.compile(r"[!-~]+(?:[ \t]+[!-~]+)*")

_OUR_OWN = ("FENCEGATE_", "PG")
"""Settings and the database's password: whoever may write a policy need not get to see them."""

_CREDENTIAL_NAMES = re.compile(
    r"(?:.*-)?(?:api-?key|key|token|secret|password|passwd|auth|authorization|credentials?|cookie"
    r"|session|jwt|signature)"
)
_CREDENTIAL_VALUES = re.compile(
    r"(?:bearer|basic|digest|token|apikey)\s.*|(?:sk|pk|rk)_(?:live|test)_.*|gh[pousr]_.*|xox[abprs]-.*"
    r"|AKIA.*|eyJ.*|fg_.*",
    re.IGNORECASE | re.DOTALL,
)


class Variables:
    """The values of one environment. A file is read once, so what was checked is what is used."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        # Those that are really there: ``explain`` has a stand-in for every other.
        self._set = frozenset(name for name, value in env.items() if value)
        self._read: dict[str, str | NotRead] = {}

    def value(self, name: str) -> str | NotRead:
        """What ``${NAME}`` stands for, or why there is nothing."""
        if name not in self._read:
            self._read[name] = self._find(name)
        return self._read[name]

    def substitute(self, text: str) -> str:
        """``text`` with each reference replaced; ``mistakes`` has found nothing."""
        return _REFERENCE.sub(self._found, text)

    def _found(self, match: re.Match[str]) -> str:
        value = self.value(match[1])
        assert isinstance(value, str)
        return value

    def _find(self, name: str) -> str | NotRead:
        if name.upper().startswith(_OUR_OWN):
            return NotRead(
                f"{name} is the gateway's own, and would be sent to the upstream",
                "give the upstream's secret a variable of its own",
            )
        file = f"{name}_FILE"
        if file in self._set:
            if name in self._set:
                return NotRead(f"{name} and {file} are both set", "unset one of them")
            return read_secret(file, self._env[file])
        value = self._env.get(name)
        if not value:
            state = "empty" if name in self._env else "not set"
            return NotRead(
                f"the environment variable {name} is {state}",
                f"set {name}, or {file} to the path of a file that holds it",
            )
        return value


def mistakes(
    file: str, headers: object, env: Variables, at: str = "upstream_headers"
) -> Iterator[PolicyError]:
    """Each header value of a raw table of fields that cannot be made; ``at``: where it stands."""
    for name, text in headers.items() if isinstance(headers, dict) else ():
        if isinstance(text, str):
            yield from _of_field(file, f"{at}.{name}", str(name), text, env)


def _of_field(file: str, path: str, name: str, text: str, env: Variables) -> Iterator[PolicyError]:
    missing = False
    for variable in sorted(set(_REFERENCE.findall(text))):
        found = env.value(variable)
        if isinstance(found, NotRead):
            missing = True
            yield PolicyError(file, path, found.problem, found.mend)
    if "${" in _REFERENCE.sub("", text):
        yield PolicyError(
            file, path, "holds a reference that does not end or has no name", "write ${NAME}"
        )
    elif _is_credential(name, text):
        yield PolicyError(
            file,
            path,
            "is a credential in the policy's text, which is read, copied and committed",
            "write ${NAME} in its place, and set NAME, or NAME_FILE, where the gateway runs",
        )
    elif not missing and not _VALUE.fullmatch(env.substitute(text)):
        yield PolicyError(
            file,
            path,
            "is not a field value once its variables are filled in",
            "use visible ASCII without line ends or blanks around it; check each variable "
            "for a trailing line end",
        )


def _is_credential(name: str, text: str) -> bool:
    """Whether ``text`` looks like a secret that is written out: by the field's name, or its own
    form."""
    if _REFERENCE.search(text) or not text:
        return False
    named = folded(name.encode("ascii", "replace")).decode("ascii")
    return bool(_CREDENTIAL_NAMES.fullmatch(named) or _CREDENTIAL_VALUES.fullmatch(text.strip()))
