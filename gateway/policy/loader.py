"""Reads a folder of policy files, once, at start.

Every mistake of every file is found before any is reported. ``tools.toml`` belongs to the lease
classes and is passed over, as are other file types and names that begin with a dot.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError

from gateway.policy import crosscheck, environment, outcomes, schema, tlsfiles
from gateway.policy.compile import compile_mount
from gateway.policy.compiled import Policies
from gateway.policy.errors import PolicyError, PolicyErrors

__all__ = ["RESERVED", "load", "names", "read_toml"]

RESERVED = frozenset({"tools.toml"})

MAX_FILE = 2**20
"""Bytes of a policy file: thousands of commands, and far from what a wrong folder may hold."""


def load(directory: Path, env: Mapping[str, str]) -> Policies:
    """The compiled policies of ``directory``, or raise ``PolicyErrors`` with all mistakes.

    ``env`` fills ``${NAME}`` in the fields that a policy sets.
    """
    files, variables = _files(directory), environment.Variables(env)
    errors: list[PolicyError] = []
    sketches: list[crosscheck.Sketch] = []
    models: list[tuple[Path, schema.PolicyModel]] = []
    for path in files:
        table = read_toml(path)
        if isinstance(table, PolicyError):
            errors.append(table)
            continue
        sketches.append(crosscheck.sketch(path.name, table))
        model = _model(path.name, table)
        if isinstance(model, schema.PolicyModel):
            models.append((path, model))
        else:
            errors += model
        errors += crosscheck.within(sketches[-1])
        errors += outcomes.within(sketches[-1])
        for command in sketches[-1].commands:
            at, fields = f"{command.path}.probe.headers", command.inner("probe", "headers")
            errors += environment.mistakes(path.name, fields, variables, at)
        errors += environment.mistakes(path.name, table.get("upstream_headers"), variables)
        errors += tlsfiles.mistakes(path, table)
    errors += crosscheck.across(sketches)
    if errors:
        order = [path.name for path in files]
        raise PolicyErrors(sorted(errors, key=lambda error: order.index(error.file)))
    mounts = [compile_mount(path, model, variables) for path, model in models]
    mounts.sort(key=lambda mount: (-len(mount.prefix), mount.prefix))
    warnings = [*crosscheck.warnings(sketches), *outcomes.warnings(sketches)]
    for mount in mounts:
        warnings += tlsfiles.warnings(mount.file, mount.upstream.client_cert_file, time.time())
    return Policies(tuple(mounts), tuple(warnings))


def names(directory: Path) -> frozenset[str]:
    """What the policies of ``directory`` are called, as far as its files can be read; raises
    ``PolicyErrors`` where it cannot. It needs nothing of the environment."""
    tables = map(read_toml, _files(directory))
    found = (crosscheck.sketch("", each).name for each in tables if isinstance(each, dict))
    return frozenset(name for name in found if name is not None)


def _files(directory: Path) -> list[Path]:
    """The policy files of a folder in order, or raise ``PolicyErrors`` that say why there are none.
    A folder that cannot be listed is not an empty one."""
    try:
        files = sorted(path for path in directory.iterdir() if _is_policy(path))
    except FileNotFoundError:
        wrong = ("is not a folder", "create it, or name another one")
    except NotADirectoryError:
        wrong = ("is a file", "name its folder")
    except (OSError, ValueError) as error:  # a name with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        wrong = (f"cannot be read ({reason})", "let this user list and enter it, or name another")
    else:
        if files:
            return files
        wrong = ("holds no policy file", "add one file per upstream: *.toml")
    raise PolicyErrors([PolicyError(str(directory.absolute()), "", *wrong)])


def _is_policy(path: Path) -> bool:
    if path.suffix != ".toml" or path.name in RESERVED or path.name.startswith("."):
        return False
    try:
        return path.is_file()
    except OSError:
        return True  # reading it says why it cannot be


def read_toml(path: Path) -> dict[str, object] | PolicyError:
    """The table in ``path``, or why there is none."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        return PolicyError(path.name, "", f"cannot be read ({error.strerror})", _mend(error))
    if len(raw) > MAX_FILE:
        return PolicyError(path.name, "", f"is larger than {MAX_FILE} bytes", "split it")
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return PolicyError(path.name, "", "is not UTF-8", "save it as UTF-8")
    except tomllib.TOMLDecodeError as error:
        return PolicyError(path.name, "", f"is not TOML: {error}", "correct it there")
    except ValueError:  # int() takes no more than 4,300 digits
        return PolicyError(path.name, "", "has a number of thousands of digits", "shorten it")
    except RecursionError:
        return PolicyError(path.name, "", "is nested hundreds of levels deep", "flatten it")


def _mend(error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return "make it a file, or rename it"
    if isinstance(error, FileNotFoundError):  # it was listed
        return "make what it links to, or remove the link"
    return "let this user read it"


def _model(file: str, table: dict[str, object]) -> schema.PolicyModel | list[PolicyError]:
    try:
        return schema.PolicyModel.model_validate(table)
    except ValidationError as error:
        return [_misplaced(each) for each in schema.mistakes(file, error)]


def _misplaced(error: PolicyError) -> PolicyError:
    """``error``, with the place of a command's field that is written above the commands."""
    if error.problem != "is not a field":
        return error
    fields = [*schema.PolicyModel.model_fields, *schema.CommandModel.model_fields]
    close = get_close_matches(error.path, fields, n=1)  # a deeper path resembles none
    if not close or close[0] in schema.PolicyModel.model_fields:
        return error
    return replace(error, mend=f"write {close[0]} inside [[commands]]")
