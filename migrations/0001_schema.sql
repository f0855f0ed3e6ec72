-- The tables. The tenant leads every primary key, so that a sharded database can distribute by it.
-- No index names a column that a settle changes, so a settle is a HOT update.

-- The one clock that SQL reads. A test replaces it in its own database. Lock first, then read it:
-- now() stands still from the start of a transaction, so it is never used.
create function gateway.clock() returns timestamptz
    language sql volatile
    return clock_timestamp();

-- Names this deployment in Via, so that a request that comes back through any replica is a loop.
create table gateway.deployment (
    id uuid not null constraint deployment_pkey primary key
);
insert into gateway.deployment (id) values (gen_random_uuid());

-- salt: keys fingerprints and key digests, so that equal bodies of two tenants have unequal digests.
create table gateway.tenants (
    tenant     int generated always as identity constraint tenants_pkey primary key,
    name       text not null constraint tenants_name_key unique
                   constraint tenants_name_check check (name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    salt       bytea not null default substring(
                   sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())) from 1 for 16)
                   constraint tenants_salt_check check (octet_length(salt) = 16),
    created_at timestamptz not null default gateway.clock()
);
-- The tenant of callers while no gateway key exists (loopback only).
insert into gateway.tenants (name) values ('default');

-- secret_digest: SHA-256 of a secret with 256 random bits, so no slow hash is needed.
create table gateway.caller_keys (
    tenant        int not null constraint caller_keys_tenant_fkey references gateway.tenants (tenant),
    key_id        text not null,
    principal     text not null,
    secret_digest bytea not null constraint caller_keys_digest_check check (octet_length(secret_digest) = 32),
    created_at    timestamptz not null default gateway.clock(),
    revoked_at    timestamptz,
    constraint caller_keys_pkey primary key (tenant, key_id)
);

-- fence: the high-water mark; it never falls while the row is remembered.
-- held: null while fences are issued outside; else the fence now held, 0 = nobody's.
-- open_*: the one open command of a serial policy, always changed in the same statement as that
-- command's attempt and deadline.
create table gateway.entities (
    tenant       int not null,
    entity       text collate "C" not null
                     constraint entities_entity_check check (length(entity) between 1 and 255),
    fence        bigint not null default 0 constraint entities_fence_check check (fence >= 0),
    held         bigint,
    open_key     bytea,
    open_attempt uuid,
    open_until   timestamptz,
    touched_at   timestamptz not null,
    constraint entities_pkey primary key (tenant, entity),
    constraint entities_open_check check (num_nulls(open_key, open_attempt, open_until) in (0, 3))
) with (fillfactor = 50);

-- State is derived, never stored: settled, else past its deadline (unknown), else in flight.
-- Fillfactor 30 leaves room for the response, so that a settle stays on its page (HOT).
-- headers: ordered "name:value" lines, each ended by CR LF. body null = not kept.
create table gateway.commands (
    tenant          int not null,
    key_digest      bytea not null constraint commands_digest_check check (octet_length(key_digest) = 16),
    key             text collate "C" not null,
    policy          text not null,
    entity          text collate "C" not null,
    fingerprint     bytea not null,
    rules           bytea not null,
    fence           bigint,
    attempt         uuid not null,
    attempts        int not null default 1,
    principal       text not null,
    request_id      text not null,
    serial          boolean not null,
    unknown         text not null constraint commands_unknown_check check (unknown in ('hold', 'resend', 'probe')),
    upstream_key    text,
    upstream_digest bytea not null,
    settle_delay_s  int not null,
    response_days   int not null,
    key_days        int not null,
    admitted_at     timestamptz not null,
    deadline        timestamptz not null,
    evidence_at     timestamptz,
    evidence_status int,
    evidence        bytea,
    settled_at      timestamptz,
    settled_by      text constraint commands_settled_by_check check (settled_by in ('answer', 'late', 'resolved')),
    status          int,
    headers         bytea,
    body            bytea,
    expires_at      timestamptz,
    constraint commands_pkey primary key (tenant, key_digest),
    constraint commands_settled_check check (num_nulls(settled_at, settled_by, expires_at) in (0, 3)),
    constraint commands_unsettled_check check (settled_at is not null or num_nonnulls(status, headers, body) = 0)
) with (fillfactor = 30);
-- Not led by the tenant: on a fresh table, without statistics, the planner would prefer such an
-- index to the primary key and read every command of the tenant.
create index commands_admitted_idx on gateway.commands (admitted_at);

-- Append-only. id is derived from (attempt, event) where there is an attempt, so that a statement
-- repeated after a lost commit answer writes its row once.
create table gateway.audit (
    tenant          int not null,
    id              uuid not null,
    at              timestamptz not null,
    event           text not null constraint audit_event_check check (event in (
                        'fence_stale', 'fence_refused', 'entity_mismatch', 'key_reused', 'released',
                        'outcome_unknown', 'resolved', 'late_evidence', 'duplicate_effect_suspected',
                        'heartbeat_lost', 'lease_expired', 'result_rejected', 'operator')),
    principal       text,
    policy          text,
    entity          text collate "C",
    key             text collate "C",
    fence           bigint,
    high_water_mark bigint,
    attempt         uuid,
    job             text,
    request_id      text,
    fingerprint     bytea,
    reason          text,
    constraint audit_pkey primary key (tenant, id)
);
create index audit_at_idx on gateway.audit (tenant, at);
create index audit_entity_idx on gateway.audit (tenant, entity, at);

create function gateway.audit_id(attempt uuid, event text) returns uuid
    language sql immutable
    return encode(substring(sha256(uuid_send(attempt) || convert_to(event, 'UTF8')) from 1 for 16), 'hex')::uuid;
