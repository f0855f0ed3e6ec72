"""The documents say what the code says: tables, names, links and commands are compared."""

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from gateway.cli.main import _parser
from gateway.core.command import SettleResult
from gateway.core.decide import Decision
from gateway.core.egress import SEALED
from gateway.core.evidence import Probed
from gateway.core.jobs import JobState
from gateway.core.problems import PREFIX, TYPES
from gateway.core.settle import Outcome
from gateway.limits import TABLE
from gateway.observe.log import Decided
from gateway.observe.metrics import Metrics
from gateway.policy import fields as policy_fields
from gateway.policy.loader import load
from gateway.policy.schema import (
    CommandModel,
    FingerprintModel,
    PolicyModel,
    ProbeModel,
    ProofModel,
    RetainModel,
)
from gateway.policy.tools import ToolModel
from gateway.proxy.answer import Label
from gateway.settings import PREFIX as VARIABLE_PREFIX
from gateway.settings import Settings
from gateway.store.audit import EVENTS

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [*(ROOT / "docs").glob("*.md"), *(ROOT / f"{n}.md" for n in ("README", "CONTRIBUTING"))]
)
LINKED = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_PATH = re.compile(r"`((?:gateway|tests|migrations|policies|examples|docs)/[\w./-]*)`")
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:[A-Z_]+=\S+ )*(fencegate .*)$", re.MULTILINE)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands below one heading, up to the next of its rank or a higher one."""
    rank = len(heading) - len(heading.lstrip("#"))
    start = text.index(f"\n{heading}\n") + 1
    rest = text[start + len(heading) :]
    end = re.search(rf"^#{{1,{rank}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, without heads and rules."""
    found: list[list[str]] = []
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.strip().splitlines() if line.startswith("|")]
        found += [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return found


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.replace("`", "")).strip().lower().replace(" ", "-")
        for title in titles
    }


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for found, text in _FENCE.findall(page.read_text(encoding="utf-8")):
            if found == language:
                yield page.name, text


# --- docs/wire.md ---------------------------------------------------------------------------------


def test_the_problem_table_is_the_list_of_types() -> None:
    table = [row[:5] for row in rows(section(read("docs/wire.md"), "## All problem types"))]
    assert table == [
        [f"`{PREFIX}{name}`", str(kind.status), kind.title, kind.sent, kind.retry]
        for name, kind in TYPES.items()
    ]


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("docs/wire.md", "## How a command is decided"),
        ("docs/architecture.md", "## Admit"),
    ],
)
def test_every_decision_is_explained(page: str, heading: str) -> None:
    named = [name for row in rows(section(read(page), heading)) for name in words(row[2])]
    assert {each.__name__ for each in get_args(Decision)} == set(named)


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("docs/wire.md", "## What became of a command that was sent"),
        ("docs/architecture.md", "## Send"),
    ],
)
def test_every_outcome_is_explained(page: str, heading: str) -> None:
    table = rows(section(read(page), heading).partition("\n### ")[0])
    assert {each.__name__ for each in get_args(Outcome)} == {words(row[1])[0] for row in table}


def test_every_label_is_explained() -> None:
    table = rows(section(read("docs/wire.md"), "## What an answer says about itself"))
    labels = list(get_args(Label))
    assert words(table[0][1]) == labels
    assert [words(row[0])[0] for row in table[-len(labels) :]] == labels


def test_every_metric_is_listed() -> None:
    table = rows(section(read("docs/wire.md"), "## Metrics"))
    metrics = Metrics()
    metrics.watch(
        **dict.fromkeys(
            ("attempts", "waiting", "key_age_s", "rows_lost", "cache_bytes", "cache_entries"),
            lambda: 0,
        )
    )
    rendered = re.findall(r"^# TYPE (\S+) ", metrics.render()[0].decode(), re.MULTILINE)
    expected = [name for name in rendered if not name.endswith("_created")]
    assert [words(row[0])[0] for row in table] == expected
    assert set(words(table[3][2])) == set(get_args(SettleResult))
    (probes,) = [row for row in table if words(row[0]) == ["fencegate_probes_total"]]
    values = probes[2].partition(". ")[0]
    assert sorted(words(values)) == sorted(get_args(Probed))


def test_every_log_field_is_listed() -> None:
    table = rows(section(read("docs/wire.md"), "## Log lines").partition("\n### ")[0])
    named = {name for row in table for name in words(row[0])}
    assert named == {each.name for each in fields(Decided)}


def test_every_log_event_is_listed() -> None:
    table = rows(section(read("docs/wire.md"), "### Events"))
    named = [name for row in table for name in words(row[0])]
    written = {name for file in _GATEWAYS for name in _events(file)}
    assert len(written) > 30
    assert sorted(named) == sorted(written | {"log"})  # a library's own lines have that name


# A worker logs with its own owner's logger, and what the drill prints is no log.
_GATEWAYS = [
    file
    for file in (ROOT / "gateway").rglob("*.py")
    if file.relative_to(ROOT / "gateway").parts[0] not in ("worker", "drill", "demo", "faultkit")
]
_WRITERS = {"event": 1, "_write": 1, "_Bounded": 2}  # the first so many arguments are names


def _events(file: Path) -> Iterator[str]:
    """The names of events that a module writes, or has written."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            names = node.args[: _WRITERS.get(called, 0)]
            if called.endswith("refuse"):
                names += [each.value for each in node.keywords if each.arg == "event"]
            for name in names:
                yield from _texts(name)


def _texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may be."""
    match node:
        case ast.Constant(str(text)):
            yield text
        case ast.IfExp():
            yield from _texts(node.body)
            yield from _texts(node.orelse)
        case _:
            pass


# --- docs/limits.md -------------------------------------------------------------------------------


def test_the_limits_of_floods_are_those_of_the_code() -> None:
    assert [tuple(row) for row in rows(section(read("docs/limits.md"), "## Floods"))] == [*TABLE]


# --- docs/settings.md -----------------------------------------------------------------------------


def test_every_setting_is_documented_with_its_variable_and_default() -> None:
    table = rows(section(read("docs/settings.md"), "## Settings"))
    assert [(words(row[0])[0], row[1].strip("`")) for row in table] == [
        (VARIABLE_PREFIX + name.upper(), "unset" if field.default is None else str(field.default))
        for name, field in Settings.model_fields.items()
    ]


def test_the_audit_events_are_the_audits() -> None:
    table = rows(section(read("docs/settings.md"), "## When an outcome is unknown"))
    assert {words(row[0])[0] for row in table} <= set(EVENTS)


# --- docs/policies.md -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("## The upstream", PolicyModel),
        ("## A command", CommandModel),
        ("### `[commands.fingerprint]`", FingerprintModel),
        ("### `[commands.retain]`", RetainModel),
        ("### `[commands.probe]`", ProbeModel),
        ("### A proof", ProofModel),
    ],
)
def test_every_policy_field_is_documented_with_its_default(
    heading: str, model: type[PolicyModel]
) -> None:
    table = rows(section(read("docs/policies.md"), heading).partition("\n### ")[0])
    assert [words(row[0])[0] for row in table] == list(model.model_fields)
    for row in table:
        field = model.model_fields[words(row[0])[0]]
        assert (row[1] == "required") == field.is_required(), row
        if not field.is_required() and row[1] not in ("see below", "the system's"):
            assert _default(row[1]) == (None if field.default in ([], {}) else field.default), row


def test_every_field_of_a_tool_is_documented_with_its_default() -> None:
    table = rows(section(read("docs/jobs.md"), "## Tools: `tools.toml`"))
    assert [words(row[0])[0] for row in table] == list(ToolModel.model_fields)
    for row in table:
        field = ToolModel.model_fields[words(row[0])[0]]
        assert (row[1] == "required") == field.is_required(), row
        if not field.is_required():
            said = None if row[1] == "none" else float(row[1].replace(",", ""))
            assert said == field.default, row


def test_every_state_of_a_job_is_explained() -> None:
    table = rows(section(read("docs/jobs.md"), "## What becomes of a job"))
    assert [name for row in table for name in words(row[0])] == list(get_args(JobState))


def _default(cell: str) -> object:
    if cell == "none":
        return None
    value = tomllib.loads(f"x = {cell.strip('`')}")["x"]
    is_size = isinstance(value, str) and value.endswith("iB")
    return policy_fields.size(value) if is_size else value


def test_every_policy_in_the_documents_loads(tmp_path: Path) -> None:
    found = [text for _, text in blocks("toml")]
    found += [
        heredoc
        for _, text in blocks("sh")
        for heredoc in re.findall(r"<<'EOF'\n(.*?)^EOF$", text, re.MULTILINE | re.DOTALL)
    ]
    assert len(found) >= 2
    for number, text in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "policy.toml").write_text(text, encoding="utf-8")
        variables = re.findall(r"\$\{([A-Z_]+)\}", text)
        assert load(folder, dict.fromkeys(variables, "secret")).warnings == ()


# --- all pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        leads_to = (page.parent / file).resolve() if file else page
        assert leads_to.is_file(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(leads_to), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = {path for path in _PATH.findall(page.read_text(encoding="utf-8")) if "NNNN" not in path}
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


def test_tests_that_are_named_exist() -> None:
    text = read("docs/guarantees.md")
    for number in range(1, 8):
        (heading,) = re.findall(rf"^## G{number}: .+$", text, re.MULTILINE)
        assert len(_TEST.findall(section(text, heading))) >= 3, heading
    missing = [
        f"{file}::{name}"
        for file, name in _TEST.findall(text)
        if not (ROOT / file).is_file() or name not in _functions(ROOT / file)
    ]
    assert missing == []


def test_tests_that_stand_behind_a_promise_about_security_exist() -> None:
    text = read("docs/security.md")
    for heading in (
        "## Secrets",
        "## Where requests go",
        "## What others write into our records",
        "## One reading of a request",
        "## Tenants and rights",
    ):
        assert len(_TEST.findall(section(text, heading))) >= 5, heading
    missing = [
        f"{file}::{name}"
        for file, name in _TEST.findall(text)
        if not (ROOT / file).is_file() or name not in _functions(ROOT / file)
    ]
    assert missing == []


def test_the_page_lists_every_network_that_needs_an_entry_of_its_own() -> None:
    row = next(
        line for line in read("docs/security.md").splitlines() if "metadata services (" in line
    )
    for block in SEALED:
        bare = str(block).removesuffix("/32") if block.version == 4 else str(block)
        short = bare.replace(".0.0/", "/").removesuffix("/128")
        words = {"224.0/4": "multicast", "ff00::/8": "multicast", "255.255.255.255": "broadcast"}
        assert any(form in row for form in (bare, short, words.get(short, words.get(bare, bare))))


def _functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_commands_in_the_documents_are_commands() -> None:
    lines = [
        (page, line.partition(" #")[0])
        for page, text in blocks("sh")
        for line in _COMMAND.findall(text.replace("\\\n", " "))
    ]
    assert len(lines) >= 10
    for page, line in lines:
        try:
            _parser().parse_args(shlex.split(line)[1:])
        except SystemExit:
            pytest.fail(f"{page}: {line}")


def test_python_in_the_documents_is_python() -> None:
    for page, text in blocks("python"):
        compile(text, page, "exec")
