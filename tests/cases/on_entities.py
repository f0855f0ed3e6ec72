"""Further inputs: one business thing in several spellings, and what is none."""

from __future__ import annotations

from typing import Any

from tests.cases.driver import Case
from tests.cases.steps import ACCOUNT, CREATED, REUSED, STALE, Step, applied, case, http, nothing

__all__ = ["CASES"]


def _account(segment: str) -> str:
    return f"/v1/accounts/{segment}/charges"


def _later(**more: Any) -> Step:
    """Another command, by an owner that is out of date."""
    return http("r2", key="k-2", fence="41", **more)


def _same(of: str, name: str, first: Step, entity: str, **second: Any) -> Case:
    """The second one names the same thing, so its fence is compared with the first one's."""
    steps = [first, CREATED, _later(**second)]
    audit = [{"event": "fence_stale", "entity": entity, "fence": 41, "high_water_mark": 42}]
    more: dict[str, Any] = {"entities": 1, "marks": {entity: 42}, "audit": audit}
    return case(of, name, steps, 1, r1=applied(), r2=STALE, **more)


def _other(of: str, name: str, first: Step, **second: Any) -> Case:
    """The second one names another thing, which has no mark yet."""
    steps = [first, CREATED, _later(**second), CREATED]
    return case(of, name, steps, 2, r1=applied(), r2=applied(), entities=2, audit=[])


def _refused(of: str, name: str, **request: Any) -> Case:
    return nothing(of, name, http(**request), 400, "request-invalid")


# -- path-query-and-target

PATHS = [
    _same("URL-06", name, http(), ACCOUNT, path=_account(segment))
    for name, segment in (
        ("digits-in-lower-case", "acc%2d1"),
        ("every-character", "%61%63%63%2D%31"),
        ("the-last-one", "acc-%31"),
    )
] + [
    _refused("URL-06", name, path=path)
    for name, path in (
        ("encoded-twice", _account("acc%252D1")),
        ("encoded-slash", _account("x%2Facc-1")),
        ("encoded-slash-in-lower-case", _account("x%2facc-1")),
        ("encoded-backslash", _account("x%5Cacc-1")),
        ("encoded-dot-segment", _account("x/%2e%2E/acc-1")),
        ("dot-segment", _account("x/../acc-1")),
        ("one-dot", _account("./acc-1")),
        ("empty-segment", _account("/acc-1")),
        ("parameters", _account("acc-1;v=1")),
        ("parameters-behind-dots", _account("x/..;v=1/acc-1")),
        ("last-slash", _account("acc-1") + "/"),
        ("encoded-blank-at-the-end", _account("acc-1%20")),
        ("encoded-tab", _account("acc-1%09")),
        ("no-encoding", _account("acc%2-1")),
        ("too-long", _account("a" * 256)),
    )
]


def _query(text: str) -> str:
    return f"/v1/by-query?{text}"


QUERIES = [
    _same("URL-06", f"query-{name}", http(path=_query("id=a1")), "query:a1", path=_query(text))
    for name, text in (
        ("value-encoded", "id=%61%31"),
        ("name-encoded", "%69d=a1"),
        ("beside-others", "x=2&id=a1&&y"),
    )
] + [
    _refused("URL-06", f"query-{name}", path=_query(text))
    for name, text in (
        ("twice", "id=a1&id=a1"),
        ("in-another-case", "id=a1&ID=a2"),
        ("nested", "id=a1&id[]=a2"),
        ("name-encoded-beside-it", "id=a1&%69d=a2"),
        ("plus", "id=a+1"),
        ("semicolon", "id=a1;x=2"),
        ("encoded-twice-and-not-ascii", "id=%C3%A9"),
    )
]


def _body(value: str) -> dict[str, Any]:
    return {"path": "/v1/cases", "body": '{"input":{"customer_id":' + value + "}}"}


def _field(value: str) -> dict[str, Any]:
    return {"path": "/v1/by-field", "fields": [("X-Account", value)]}


ELSEWHERE = [
    _same(
        "URL-06", "escapes-in-json", http(**_body('"c-1"')), "customer:c-1", **_body(r'"\u0063-1"')
    ),
    _same("URL-06", "blanks-around-a-field", http(**_field("f1")), "field:f1", **_field(" \t f1 ")),
    *(
        _refused("URL-06", f"json-{name}", **_body(value))
        for name, value in (
            ("number", "1"),
            ("fraction", "1.0"),
            ("true", "true"),
            ("list", '["c-1"]'),
            ("blank-at-the-end", '"c-1 "'),
            ("line-end", r'"c-1\n"'),
            ("nul", r'"c-1\u0000"'),
        )
    ),
    *(
        _refused("URL-06", f"field-{name}", **_field(value))
        for name, value in (("two-in-one", "f1, f2"), ("obs-text", "f\xe9"), ("long", "f" * 256))
    ),
    nothing(
        "URL-06",
        "field-twice",
        http(path="/v1/by-field", fields=[("X-Account", "f1"), ("x-account", "f1")]),
        *(400, "request-invalid"),
    ),
    case(
        "URL-06",
        "another-spelling-under-the-same-key",
        [http(), CREATED, http("r2", path=_account("acc%2D1"))],
        1,
        r1=applied(),
        r2=REUSED,
    ),
]

FORMS = [
    _refused("URL-07", name, path=_account(segment))
    for name, segment in (
        ("composed", "caf%C3%A9"),
        ("decomposed", "cafe%CC%81"),
        ("latin-1", "caf%E9"),
        ("full-width", "%EF%BD%81cc-1"),
        ("look-alike", "%D0%B0cc-1"),
        ("joiner", "acc%E2%80%8D-1"),
        ("soft-hyphen", "acc%C2%AD-1"),
        ("right-to-left", "%E2%80%AEacc-1"),
        ("byte-order-mark", "%EF%BB%BFacc-1"),
        ("overlong", "%C1%A1cc-1"),
        ("surrogate", "acc%ED%A0%80"),
        ("delete", "acc%7F"),
    )
] + [
    _refused("URL-07", "json-composed", **_body(r'"caf\u00e9"')),
    _refused("URL-07", "json-invisible", **_body(r'"c-1\u200b"')),
    _refused("URL-07", "field-in-utf-8", **_field("caf\xc3\xa9")),
]

_ANY = "/v1/any-case/"

LETTERS = [
    _other("URL-07", "case-counts", http(), path=_account("ACC-1")),
    _other("URL-07", "case-counts-encoded", http(), path=_account("%41cc-1")),
    *(
        _same("URL-07", f"any-case-{name}", http(path=_ANY + first), entity, path=_ANY + second)
        for name, first, second, entity in (
            ("capitals-first", "ACC-1", "acc-1", "any-case:acc-1"),
            ("capitals-behind", "acc-1", "Acc-1", "any-case:acc-1"),
            ("capitals-encoded", "acc-1", "%41cc-1", "any-case:acc-1"),
        )
    ),
    _other("URL-07", "any-case-other-things", http(path=_ANY + "ACC-1"), path=_ANY + "ACC-2"),
    _refused("URL-07", "any-case-kelvin", path=_ANY + "%E2%84%AA-1"),
    _refused("URL-07", "any-case-dotless", path=_ANY + "%C4%B1d-1"),
    case(
        "URL-07",
        "any-case-same-key",
        [http(path=_ANY + "acc-1"), CREATED, http("r2", path=_ANY + "ACC-1")],
        1,
        r1=applied(),
        r2=REUSED,
    ),
    case(
        "URL-07",
        "any-case-named-in-capitals",
        [http(path=_ANY + "ACC-1", fields=[("X-Execution-Entity", "any-case:ACC-1")])],
        0,
        r1={
            "status": 403,
            "type": "entity-mismatch",
            "outcome": "rejected",
            "sent": "no",
        },
        entities=0,
    ),
    case(
        "URL-07",
        "any-case-named-as-it-is-made",
        [http(path=_ANY + "ACC-1", fields=[("X-Execution-Entity", "any-case:acc-1")]), CREATED],
        1,
        r1=applied(),
        marks={"any-case:acc-1": 42},
    ),
]

CASES: list[Case] = [*PATHS, *QUERIES, *ELSEWHERE, *FORMS, *LETTERS]
