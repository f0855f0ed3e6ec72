"""The schema that editors get: the one in ``docs``, true to the models, judged by a validator that
nobody here wrote."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from gateway.cli.main import main
from gateway.policy.published import as_text, json_schema
from gateway.policy.schema import (
    CommandModel,
    FingerprintModel,
    PolicyModel,
    ProbeModel,
    ProofModel,
    RetainModel,
)

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "docs" / "policy.schema.json"
MEND = "regenerate it: .venv/bin/python -m gateway.cli check --schema > docs/policy.schema.json"

KEYWORDS = {
    *("default", "description", "type", "pattern", "enum", "const", "items", "anyOf", "$ref"),
    *("minimum", "maximum", "exclusiveMinimum", "minLength", "minItems", "maxItems"),
    *("additionalProperties", "propertyNames"),
}

FULL: dict[str, Any] = {
    "name": "payments",
    "mount": "/payments",
    "upstream": "https://payments.example/base",
    "upstream_headers": {"Authorization": "Bearer ${TOKEN}"},
    "commands": [
        {
            "name": "capture",
            "match": "POST /v1/invoices/{id}/capture",
            "entity": "invoice:{path.id}",
            "request_limit": "2 MiB",
            "keep_limit": 1024,
            "send_key": "Idempotency-Key",
            "fingerprint": {"body": "json", "ignore": ["/trace"], "headers": ["X-Version"]},
            "retain": {"response_days": 7},
            "unknown": "probe",
            "probe": {
                "request": "GET /v1/captures?reference={upstream_key}",
                "headers": {"X-Reader": "yes"},
                "applied": {"status": [200], "where": "/data", "items": "some"},
                "absent": {"status": [404], "where": "/error", "equals": ["none", 0, False]},
                "interval_s": 5,
                "replay": True,
            },
        }
    ],
}


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def policies() -> Iterator[tuple[str, str]]:
    """Every policy in the repository: files, and blocks of the documents."""
    for folder in ("policies", "deploy", "examples"):
        for path in sorted((ROOT / folder).rglob("*.toml*")):
            if not path.name.startswith("tools.toml"):  # which is no policy
                yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    for page in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"):
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        blocks += re.findall(r"<<'EOF'\n(.*?)^EOF$", text, re.MULTILINE | re.DOTALL)
        for number, block in enumerate(blocks):
            yield f"{page.name}, block {number}", block


def test_the_published_file_is_the_schema() -> None:
    assert FILE.read_text(encoding="utf-8") == as_text(), MEND


def test_check_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--schema"]) == 0
    assert capsys.readouterr().out == as_text()


def test_every_field_is_described_and_has_its_default() -> None:
    schema = json_schema()
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    assert "://" not in schema["$id"]
    tables = [(PolicyModel, schema)]
    tables += [
        (m, schema["$defs"][m.__name__])
        for m in (CommandModel, FingerprintModel, RetainModel, ProbeModel, ProofModel)
    ]
    for model, table in tables:
        assert table["title"]
        assert list(table["properties"]) == list(model.model_fields)
        for name, field in table["properties"].items():
            assert field["description"].endswith("."), name
            assert field.keys() <= KEYWORDS, name
            info = model.model_fields[name]
            assert ("default" in field) == (info.default is not None and not info.is_required()), (
                name
            )


@pytest.mark.parametrize(("name", "text"), list(policies()), ids=lambda value: value[:40])
def test_every_policy_of_the_repository_is_valid(
    validator: Draft202012Validator, name: str, text: str
) -> None:
    assert [error.message for error in validator.iter_errors(tomllib.loads(text))] == []


def test_a_full_policy_is_valid(validator: Draft202012Validator) -> None:
    PolicyModel.model_validate(FULL)
    assert list(validator.iter_errors(FULL)) == []


MISTAKES: list[tuple[str, Any, str]] = [
    ("nmae", "x", "Additional properties"),
    ("name", "Payments", "does not match"),
    ("mount", "payments", "does not match"),
    ("mount", "/payments/", "does not match"),
    ("upstream", "payments.example", "does not match"),
    ("idle_s", 301, "maximum"),
    ("idle_s", "4", "is not of type"),
    ("max_connections", 0, "minimum"),
    ("upstream_headers", {"X_Y": "1"}, "does not match"),
    ("commands", {}, "is not of type"),
    ("commands.match", "post /v1", "does not match"),
    ("commands.fence", "sometimes", "is not one of"),
    ("commands.serial", "yes", "is not of type"),
    ("commands.timeout_s", 0, "minimum"),
    ("commands.not_executed", [201], "minimum"),
    ("commands.request_limit", "8 MB", "is not valid under any"),
    ("commands.keep_limit", 2**30, "is not valid under any"),
    ("commands.timeout", 3, "Additional properties"),
    ("commands.fingerprint", {"body": "xml"}, "is not one of"),
    ("commands.fingerprint", {"ignore": ["trace"]}, "does not match"),
    ("commands.retain", {"key_days": 0}, "minimum"),
    ("commands.unknown", "guess", "is not one of"),
    ("commands.probe", {"request": "POST /v1", "applied": {"status": [200]}}, "does not match"),
    ("commands.probe", {"request": "GET /v1", "applied": {"status": [500]}}, "maximum"),
    ("commands.probe", {"request": "GET /v1", "applied": {"status": []}}, "non-empty"),
]


@pytest.mark.parametrize(("field", "value", "said"), MISTAKES, ids=lambda value: str(value)[:30])
def test_a_mistake_is_found_by_schema_and_loader(
    validator: Draft202012Validator, field: str, value: Any, said: str
) -> None:
    wrong: dict[str, Any] = json.loads(json.dumps(FULL))
    table, name = (wrong, field)
    if field.startswith("commands."):
        table, name = wrong["commands"][0], field.removeprefix("commands.")
    table[name] = value
    (error,) = validator.iter_errors(wrong)
    assert said in error.message
    with pytest.raises(ValueError, match=name):
        PolicyModel.model_validate(wrong)


def test_what_is_missing_is_found(validator: Draft202012Validator) -> None:
    for table, names in ((FULL, ("name", "mount", "upstream")), (FULL["commands"][0], ("entity",))):
        for name in names:
            without = {key: value for key, value in table.items() if key != name}
            whole = without if table is FULL else {**FULL, "commands": [without]}
            (error,) = validator.iter_errors(whole)
            assert error.message == f"'{name}' is a required property"
