"""``tools.toml``: all mistakes at once, each with its mend."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.core.jobs import Terms
from gateway.core.leases import LeaseClass
from gateway.policy import PolicyErrors
from gateway.policy.tools import Tool, Tools, load_all, load_tools

SHIPPED = Path(__file__).resolve().parents[3] / "policies"


def loaded(folder: Path, text: str) -> Tools:
    (folder / "tools.toml").write_text(text, encoding="utf-8")
    return load_tools(folder)


def errors(folder: Path, text: str) -> list[str]:
    with pytest.raises(PolicyErrors) as caught:
        loaded(folder, text)
    return [str(error) for error in caught.value.errors]


def tool(more: str = "", name: str = "charge") -> str:
    return f"[[tools]]\nname = '{name}'\n{more}\n"


def test_a_tool_needs_no_more_than_a_name(tmp_path: Path) -> None:
    tools = loaded(tmp_path, tool())
    assert tools.by_name == {"charge": Tool("charge", LeaseClass(), None, None)}
    assert tools.terms(["other", "charge", "charge"]) == [
        Terms("charge", 60_000, 3_600_000, 5, None, None)
    ]


def test_without_the_file_there_are_no_tools(tmp_path: Path) -> None:
    tools = load_tools(tmp_path)
    assert tools.by_name == {}
    assert tools.terms(["charge"]) == []


def test_names_for_metrics_are_lists_of_their_own(tmp_path: Path) -> None:
    tools = loaded(tmp_path, "models = ['m-1', 'm 2']\nproviders = ['p']\n" + tool())
    assert (tools.models, tools.providers) == (("m-1", "m 2"), ("p",))
    many = ", ".join(f"'m{number}'" for number in range(51))
    assert ["models" in each for each in errors(tmp_path, f"models = [{many}]\n")] == [True]
    (error,) = errors(tmp_path, "model = ['m']\n")
    assert error == "tools.toml: model: is not a field; write models"
    (error,) = errors(tmp_path, "models = ['']\n")
    assert error.startswith("tools.toml: models[0]: ")


@pytest.mark.parametrize("field", ["models", "providers"])
@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["m"] * 2, "[1]: 'm' is listed before; remove one"),
        (["m", "other"], "[1]: 'other' is what metrics call all that is not listed; remove it"),
        (["none"], "[0]: 'none' is what metrics call"),
        (["\x1b[31m"], "[0]: has a control character, or a blank at an end; take it out"),
        (["a\nb"], "[0]: has a control character"),
        ([" m"], "[0]: has a control character, or a blank at an end"),
        (["m" * 129], "[0]: has 129 characters; shorten it to 128 at most"),
        ([f"m{n}" for n in range(51)], ": lists 51 names, and metrics tell 50 apart; keep those"),
    ],
)
def test_names_for_metrics_have_mistakes_of_their_own(
    tmp_path: Path, field: str, names: list[str], said: str
) -> None:
    (error,) = errors(tmp_path, f"{field} = {json.dumps(names)}\n" + tool())
    assert error.startswith(f"tools.toml: {field}{said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"x = {'9' * 5_000}\n", "has a number of thousands of digits; shorten it"),
        (f"x = {'[' * 5_000}{']' * 5_000}\n", "is nested hundreds of levels deep; flatten it"),
    ],
)
@pytest.mark.parametrize("file", ["tools.toml", "pay.toml"])
def test_what_the_reader_cannot_hold_is_a_mistake_of_the_file(
    tmp_path: Path, file: str, text: str, said: str
) -> None:
    (tmp_path / "zero.toml").write_text("name = 'zero'\n", encoding="utf-8")
    (tmp_path / file).write_text(text, encoding="utf-8")
    with pytest.raises(PolicyErrors) as caught:
        load_all(tmp_path, {})
    assert f"{file}: {said}" in map(str, caught.value.errors)


def test_what_is_no_file_is_not_absent(tmp_path: Path) -> None:
    path = tmp_path / "tools.toml"

    def error() -> str:
        with pytest.raises(PolicyErrors) as caught:
            load_tools(tmp_path)
        return str(caught.value)

    path.mkdir()
    assert error() == "tools.toml: is not a file; make it one, or remove it"
    path.rmdir()
    os.mkfifo(path)  # whoever opened it would wait for ever
    assert error() == "tools.toml: is not a file; make it one, or remove it"
    path.unlink()
    path.symlink_to(tmp_path / "nothing")
    assert error().endswith("make what it links to, or remove the link")
    path.unlink()
    path.symlink_to(path)
    assert error().startswith("tools.toml: cannot be read (")
    path.unlink()
    (tmp_path / "elsewhere").write_text(tool(), encoding="utf-8")
    path.symlink_to(tmp_path / "elsewhere")
    assert list(load_tools(tmp_path).by_name) == ["charge"]


def test_the_class_of_a_tool_that_has_left_is_the_default(tmp_path: Path) -> None:
    tools = loaded(tmp_path, tool("attempts = 2"))
    assert tools.lease_class("charge").attempts == 2
    assert tools.lease_class("gone") == LeaseClass()


def test_mistakes_of_policies_and_tools_come_together(tmp_path: Path) -> None:
    (tmp_path / "pay.toml").write_text("name = 'pay'\n", encoding="utf-8")
    (tmp_path / "tools.toml").write_text(tool("misses = 0"), encoding="utf-8")
    with pytest.raises(PolicyErrors) as caught:
        load_all(tmp_path, {})
    assert {error.file for error in caught.value.errors} == {"pay.toml", "tools.toml"}


def test_an_unknown_tool_is_told_which_it_may_have_meant(tmp_path: Path) -> None:
    tools = loaded(tmp_path, tool())
    assert tools.unknown("chrage") == "There is no tool 'chrage'; did you mean 'charge'?"
    assert tools.unknown("ship") == "There is no tool 'ship'; add it to tools.toml"


def test_the_example_is_complete_and_loads(tmp_path: Path) -> None:
    text = (SHIPPED / "tools.toml.example").read_text(encoding="utf-8")
    tools = loaded(tmp_path, text)
    assert list(tools.by_name) == ["open_case", "charge", "plan_charge", "plan_case", "node_charge"]
    named = [line.partition("=")[0].strip() for line in text.splitlines() if "=" in line]
    assert {*LeaseClass.__slots__, "name", "max_running", "max_running_per_user"} <= set(named)


@pytest.mark.parametrize(
    ("line", "path", "says"),
    [
        ("lease_s = '60'", "lease_s", "without quotes"),
        ("lease_s = 0", "lease_s", "must be above 0"),
        ("lease_s = 3601", "lease_s", "at most 3600"),
        ("misses = 0", "misses", "at least 1"),
        ("attempts = 0", "attempts", "at least 1"),
        ("max_running = 0", "max_running", "at least 1"),
        ("total_s = 604801", "total_s", "at most 604800"),
        ("leases_s = 3", "leases_s", "is not a field; write lease_s"),
        ("zzz = 3", "zzz", "is not a field; remove it (name, lease_s"),
        ("lease_s = 40", "lease_s", "3 × 15 + 2 = 47; raise lease_s above 47"),
        ("total_s = 50\nstage_limit_s = 9", "total_s", "50 is less than lease_s = 60; raise it to"),
        (
            "max_running = 2\nmax_running_per_user = 3",
            "max_running_per_user",
            "3 is more than max_running = 2, so it limits nobody; lower it",
        ),
    ],
)
def test_each_mistake_names_its_field_and_its_mend(
    tmp_path: Path, line: str, path: str, says: str
) -> None:
    (error,) = errors(tmp_path, tool(line))
    assert error.startswith(f"tools.toml: tools[0].{path}: ")
    assert says in error


def test_all_mistakes_come_at_once(tmp_path: Path) -> None:
    text = tool("lease_s = 40") + tool("attempts = 'x'", "a b") + tool() + "heartbeat = 1\n"
    found = errors(tmp_path, text)
    assert [each.split(": ")[1] for each in found] == [
        "tools[1].name",
        "tools[1].attempts",
        "tools[2].heartbeat",
        "tools[0].lease_s",
        "tools[2].name",
    ]


def test_a_field_outside_of_a_tool_is_told_where_it_belongs(tmp_path: Path) -> None:
    (error,) = errors(tmp_path, "lease_s = 60\n" + tool())
    assert error == "tools.toml: lease_s: is not a field; write lease_s inside [[tools]]"


def test_what_is_not_toml_says_where(tmp_path: Path) -> None:
    (error,) = errors(tmp_path, "[[tools]\n")
    assert error.startswith("tools.toml: is not TOML: ")
