"""Every look-up names the tenant: read off every statement and every function of the schema."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

import pytest

from gateway.store.queries import load
from tests.kit.db import Server
from tests.kit.gateway import rows
from tests.kit.tenancy import untied

_RETENTION = "retention forgets by clocks, whosesoever it is, and answers nobody"
_OPERATOR = "the command line: all tenants, or the one that --tenant names; no route runs it"
_BACKGROUND = "looks for what is due in all tenants, a bounded number at once, and answers nobody"
_KEYS = "the list of tenants and of their keys itself, by which callers are told apart"

# By statement: which references are not tied to a tenant, and why that is right.
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "acknowledge_losses/2": ("lost_rows r", _OPERATOR),
    "audit.newest_first": ("tenants t", _OPERATOR),
    "audit.oldest_first": ("tenants t", _OPERATOR),
    "commands.open_parallel": ("commands c", "tenants t", "read once, before it serves anybody"),
    "expired_leases/1": ("job_leases l", _BACKGROUND),
    "forget_audit/2": ("tenants t", _RETENTION),
    "forget_commands/4": ("commands c", _RETENTION),
    "not_ours/3": ("watched w", "watched w", "watched w", _BACKGROUND),
    "forget_entities/4": ("entities e", _RETENTION),
    "forget_given_back/1": ("given_back o", _RETENTION),
    "forget_job_keys/2": ("job_keys o", _RETENTION),
    "forget_jobs/2": ("job_history h", _RETENTION),
    "forget_watched/3": ("watched w", _RETENTION),
    "give_up_overdue/1": ("jobs j", _BACKGROUND),
    "job_reads.finished": ("job_history h", "tenants t", _OPERATOR),
    "job_reads.holders": ("tenants t", _OPERATOR),
    "job_reads.unfinished": ("jobs j", "tenants t", _OPERATOR),
    "jobs.leases": ("job_leases l", "counts for the metrics, by tool; no name of a tenant is read"),
    "losses.list": ("lost_rows r", "tenants t", _OPERATOR),
    "losses.open": ("lost_rows r", "counts what the database lost, which bars all tenants"),
    "operator.job_made": ("tenants t", _OPERATOR),
    "operator.list": ("commands c", "tenants t", _OPERATOR),
    "retention.due": (
        *("commands c", "commands c", "audit a", "job_history h", "job_keys k", "job_history h"),
        *("job_keys k", "given_back g", "entities e"),
        _OPERATOR,
    ),
    "refuse_all/16": (
        "audit a",
        "one row: the first from the tenant's own id on, which counts only if it is that very one",
    ),
    "sweep/2": ("commands c", _BACKGROUND),
    "take_due/5": ("watched w", "watched w", _BACKGROUND),
    "tenants.ensure_tenant": ("tenants tenants", "makes it; its number is the table's to give"),
    "tenants.list_keys": ("tenants t", "caller_keys k", _KEYS),
    "tenants.list_tenants": ("tenants tenants", _KEYS),
    "tenants.snapshot": ("tenants t", "caller_keys k", _KEYS),
    "touch_job_entities/3": ("jobs j", _RETENTION),
}


@pytest.fixture(scope="module")
def dsn(postgres: Server) -> Iterator[str]:
    with postgres.database() as made:
        yield made


def tables(dsn: str) -> frozenset[str]:
    found = rows(
        dsn,
        "select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = 'gateway'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')"
        " and a.attname = 'tenant' and not a.attisdropped",
    )
    return frozenset(row["relname"] for row in found)


def statements(dsn: str) -> Iterator[tuple[str, str]]:
    for file in files("gateway.store").joinpath("sql").iterdir():
        for name, text in load(file.name.removesuffix(".sql")).items():
            yield f"{file.name.removesuffix('.sql')}.{name}", text
    for row in rows(
        dsn,
        "select p.proname || '/' || p.pronargs as name, p.prosrc,"
        " pg_get_function_sqlbody(p.oid) as body from pg_proc p"
        " where p.pronamespace = 'gateway'::regnamespace",
    ):
        yield row["name"], row["body"] or row["prosrc"]


def test_every_look_up_names_the_tenant(dsn: str) -> None:
    """The list says exactly what does not, so that it cannot outlive its reasons."""
    known = tables(dsn)
    assert {"commands", "entities", "audit", "jobs", "job_leases", "tenants"} <= known
    read = dict(statements(dsn))
    assert len(read) > 80
    found = {name: tuple(untied(text, known)) for name, text in read.items()}
    loose = {name: refs for name, refs in found.items() if refs}
    assert loose == {name: said[:-1] for name, said in EXCEPTIONS.items()}
    # The reason is a sentence, not a reference that was forgotten.
    assert all(" " in said[-1] and said[-1].split()[0] not in known for said in EXCEPTIONS.values())


def test_no_route_can_come_to_what_does_not(dsn: str) -> None:
    """What runs by name because a caller asks."""
    asked = {
        "commands": {"admit", "settle", "settle_unmatched", "release", "hold", "ready"},
        "fences": {"issue"},
        "jobs": {
            *("enqueue", "claim", "renew", "end", "cancel", "approve", "retry", "of_session"),
            "find",
        },
        "unknowns": {"take_over", "ask_now", "probed", "report"},
    }
    names = {f"{file}.{name}" for file, found in asked.items() for name in found}
    assert names <= dict(statements(dsn)).keys()
    assert names & EXCEPTIONS.keys() == set()


def test_the_tenant_leads_every_primary_key(dsn: str) -> None:
    found = rows(
        dsn,
        "select c.relname, a.attname from pg_index i join pg_class c on c.oid = i.indrelid"
        " join pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[0]"
        " where i.indisprimary and c.relnamespace = 'gateway'::regnamespace",
    )
    leads = {row["relname"]: row["attname"] for row in found}
    assert {name: leads.get(name) for name in tables(dsn)} == dict.fromkeys(tables(dsn), "tenant")


TABLES = frozenset({"commands", "entities", "audit", "tenants"})


@pytest.mark.parametrize(
    "sql",
    [
        "select * from gateway.commands where key = $1",
        "select * from gateway.commands c where c.key_digest = $1 -- c.tenant = $2",
        "select * from gateway.commands c where c.key_digest = 'c.tenant = 1'",
        "select * from gateway.commands c where c.tenant = $1 or c.key = $2",
        "select * from gateway.commands c where (c.key = $2 or (c.tenant = $1))",
        "select * from gateway.commands c where not (c.tenant = $1)",
        "select * from gateway.commands c where c.tenant <> $1",
        "select * from gateway.commands c where c.tenant = c.tenant",
        "select c.tenant = $1 from gateway.commands c",
        "select * from gateway.commands c join gateway.entities e on e.tenant = c.tenant",
        "select * from gateway.commands c, gateway.entities e where e.tenant = $1",
        "select from gateway.commands c join gateway.entities e using (entity) where c.tenant = $1",
        "select * from gateway.commands c join gateway.tenants t on t.tenant = c.tenant",
        "select * from gateway.commands c where exists (select where c.tenant = $1)",
        "select * from gateway.commands c where c.key in (select 1 where tenant = $1)",
        "select * from gateway.commands c where c.tenant = $1 union select * from gateway.commands",
        "update gateway.commands set tenant = $1 where key = $2",
        "update gateway.commands c set body = null where c.key = $1 returning c.tenant = $2",
        "delete from gateway.audit a using gateway.commands c where a.tenant = c.tenant",
        "insert into gateway.audit (id, event) values ($1, $2)",
        "insert into gateway.audit values ($1, $2)",
        "insert into gateway.audit (tenant, id) select c.tenant, $1 from gateway.commands c",
        "with x as (select * from gateway.commands) select * from x where x.tenant = $1",
        "if v = 1 then perform 1 from gateway.entities e where e.entity = p; end if",
    ],
)
def test_what_names_no_tenant_is_seen(sql: str) -> None:
    assert untied(sql, TABLES) != []


@pytest.mark.parametrize(
    "sql",
    [
        "select * from gateway.commands where tenant = $1 and key = $2",
        "select * from gateway.commands c where c.tenant = any ($1)",
        "select * from gateway.commands c where $1 = c.tenant and (c.key = $2 or c.fence = 1)",
        "select * from gateway.commands c where (c.tenant, c.key) = ($1, $2)",
        "select * from gateway.commands c where (c.tenant, c.key) in (select i.a, i.b from i)",
        """select * from gateway.commands c join gateway.tenants t on t.tenant = c.tenant
            where t.name = $1""",
        """select * from gateway.entities e left join gateway.commands c
            on (c.tenant = e.tenant and c.key_digest = e.open_key) where e.tenant = p_tenant""",
        """select from gateway.commands c join gateway.entities e using (tenant, entity)
            where c.tenant = $1""",
        """select from i left join lateral (select 1 from gateway.commands c
            where c.tenant = i.tenant limit 1) c on true""",
        "update gateway.commands c set body = null from f where c.tenant = f.tenant",
        "delete from gateway.audit a using (select 1 as tenant) d where a.tenant = d.tenant",
        "insert into gateway.audit as a (tenant, id) values ($1, $2) on conflict do nothing",
        "declare v gateway.commands; begin perform gateway.audit_id(a, b); end",
    ],
)
def test_what_names_it_is_none(sql: str) -> None:
    assert untied(sql, TABLES) == []
