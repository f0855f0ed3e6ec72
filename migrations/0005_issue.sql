-- Fences issued here, beside those of outside issuers: one counter per entity, whoever raises it.
--
-- entities.held: null while its fences are issued outside; else the fence now held, 0 = nobody's.
-- From the first issue on, only the fence that is held is admitted (row 2), and the mark is raised
-- only by issuing, claiming and the ends of leases. No row has it yet, so the check need not look.
alter table gateway.entities
    add constraint entities_held_check check (held is null or held in (0, fence)) not valid;

-- One row for each running job: the right to work on an entity. At most one for each entity, by the
-- primary key; and no other index, so that a heartbeat is a HOT update (fillfactor 30: room for two
-- more versions of each row on its page).
-- claim: the request that granted it. lease_ms: how far one heartbeat reaches. total_until: no
-- heartbeat reaches beyond it. All times are the database's.
create table gateway.job_leases (
    tenant      int not null,
    entity      text collate "C" not null,
    job         uuid not null,
    fence       bigint not null,
    owner       text not null,
    claim       uuid not null,
    tool        text collate "C" not null,
    on_behalf   text collate "C",
    lease_ms    int not null constraint job_leases_lease_check check (lease_ms > 0),
    granted_at  timestamptz not null,
    beat_at     timestamptz not null,
    lease_until timestamptz not null,
    total_until timestamptz not null,
    constraint job_leases_pkey primary key (tenant, entity),
    constraint job_leases_until_check check (lease_until <= total_until)
) with (fillfactor = 30);

-- Row 2 of the decision table: fences of this entity are issued here (the policy or the entity says
-- so), and this is not the one now held. Null without a fence: nothing is compared.
create function gateway.is_not_held(fence bigint, held bigint, issuer_here boolean) returns boolean
    language sql immutable
    return case when fence is null then null
                when held is null then issuer_here is true
                else fence <> held end;

-- The next fence of an entity, for whoever gets the right to work on it. The first one issued here
-- leaves 2^20 out, so that no fence that an outside issuer has handed out and that was not seen yet
-- can be taken for ours. From 0 too: of an entity whose outside fences were never seen there is no
-- row, or one that says 0, just as if there had been none.
create function gateway.next_fence(fence bigint, held bigint) returns bigint
    language sql immutable
    return case when held is null then fence + 1048577 else fence + 1 end;

-- Issue a fence to somebody else's queue or lock. Under the entity's row lock, never from a sequence,
-- whose values may commit out of order.
-- Guard: no lease on the entity, judged under its row lock; a lease counts until its end is recorded.
-- Returns fence, or null with the job that holds the entity and how long its lease lasts.
create function gateway.issue_fence(p_tenant int, p_entity text)
returns table (fence bigint, job uuid, remaining_ms bigint)
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_now   timestamptz;
    v_lease gateway.job_leases;
begin
    insert into gateway.entities (tenant, entity, touched_at)
    values (p_tenant, p_entity, gateway.clock())
        on conflict (tenant, entity) do nothing;
    perform 1 from gateway.entities e
      where e.tenant = p_tenant and e.entity = p_entity
        for no key update;
    v_now := gateway.clock();

    select * into v_lease from gateway.job_leases l
     where l.tenant = p_tenant and l.entity = p_entity;
    if found then
        return query select null::bigint, v_lease.job,
                            (extract(epoch from v_lease.lease_until - v_now) * 1000)::bigint;
        return;
    end if;

    return query
    update gateway.entities e
       set fence = gateway.next_fence(e.fence, e.held), held = gateway.next_fence(e.fence, e.held),
           touched_at = v_now
     where e.tenant = p_tenant and e.entity = p_entity
    returning e.fence, null::uuid, null::bigint;
end
$$;

-- The same for SQL users, inside any transaction of theirs: select gateway.issue_fence('default',
-- 'invoice:1'). Commands of the entity wait until that transaction ends, so end it soon.
create function gateway.issue_fence(p_tenant text, p_entity text) returns bigint
language plpgsql
as $$
declare
    v_tenant int;
    v_found  record;
begin
    select t.tenant into v_tenant from gateway.tenants t where t.name = p_tenant;
    if v_tenant is null then
        raise exception 'there is no tenant %', coalesce(quote_literal(p_tenant), 'null')
            using errcode = 'undefined_object',
                  hint = 'Name one that has a gateway key, or ''default'' where there are no keys.';
    end if;
    -- As everywhere: any other text names an entity that no command can have.
    if p_entity is null or length(p_entity) > 255
       or p_entity collate "C" !~ '^[!-~]([ -~]*[!-~])?$' then
        raise exception 'an entity has 1 to 255 characters, all printable ASCII, no blank at either end'
            using errcode = 'invalid_parameter_value',
                  hint = 'Name it as the policy does, e.g. ''invoice:1''.';
    end if;
    select * into v_found from gateway.issue_fence(v_tenant, p_entity);
    if v_found.fence is null then
        raise exception 'entity-leased: job % holds %', v_found.job, quote_literal(p_entity)
            using errcode = 'object_in_use',
                  hint = format('Try again when its lease has ended; it lasts %s ms unless it is renewed.',
                                v_found.remaining_ms);
    end if;
    return v_found.fence;
end
$$;

-- Admit as before (see 0002 for its guard), with row 2, and with the outline of 0004. p_issuer_here:
-- what the policy says; null: outside.
create function gateway.admit(
    p_tenant int[], p_key_digest bytea[], p_key text[], p_policy text[], p_entity text[],
    p_fingerprint bytea[], p_rules bytea[], p_fence bigint[], p_attempt uuid[],
    p_principal text[], p_request_id text[], p_serial boolean[], p_unknown text[],
    p_upstream_key text[], p_upstream_digest bytea[],
    p_deadline_ms int[], p_settle_delay_s int[], p_response_days int[], p_key_days int[],
    p_outline bytea[], p_issuer_here boolean[]
) returns table (
    ord bigint, mark bigint, held bigint,
    known_attempt uuid, known_state text, known_same boolean, known_remaining_ms bigint,
    known_status int, known_headers bytea, known_body bytea, known_settled_by text,
    known_evidence_status int,
    open_key text, open_state text, open_remaining_ms bigint
)
language plpgsql
-- Fresh tables have no statistics; without these pins small batches ran three times slower.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
begin
    -- The gateway pins this for each connection, which a pooler in between may have dropped. Not
    -- asked of the release before (null), which does not pin it. issue_fence needs no such check:
    -- whoever changed the entity since the snapshot has changed its row, whose lock then fails.
    if p_issuer_here is not null
       and current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'the database runs transactions as %, and the gateway needs read committed; reset default_transaction_isolation for the database and the role',
            current_setting('transaction_isolation') using errcode = 'feature_not_supported';
    end if;

    insert into gateway.entities (tenant, entity, touched_at)
    select i.tenant, i.entity, gateway.clock()
      from unnest(p_tenant, p_entity, p_fence, p_serial) as i (tenant, entity, fence, serial)
     where i.fence is not null or i.serial
     order by i.tenant, i.entity collate "C"
        on conflict (tenant, entity) do nothing;

    perform 1
       from gateway.entities e
       join unnest(p_tenant, p_entity, p_fence, p_serial) as i (tenant, entity, fence, serial)
         on e.tenant = i.tenant and e.entity = i.entity
      where i.fence is not null or i.serial
      order by e.tenant, e.entity
        for no key update of e;

    v_now := gateway.clock();

    with input as (
        select * from unnest(
            p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence,
            p_attempt, p_principal, p_request_id, p_serial, p_unknown, p_upstream_key,
            p_upstream_digest, p_deadline_ms, p_settle_delay_s, p_response_days, p_key_days,
            p_outline, p_issuer_here
        ) as i (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence,
            attempt, principal, request_id, serial, unknown, upstream_key,
            upstream_digest, deadline_ms, settle_delay_s, response_days, key_days, outline, issuer_here)
    ), inserted as (
        insert into gateway.commands (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence, attempt, principal,
            request_id, serial, unknown, upstream_key, upstream_digest, settle_delay_s,
            response_days, key_days, admitted_at, deadline, outline)
        select i.tenant, i.key_digest, i.key, i.policy, i.entity, i.fingerprint, i.rules, i.fence,
               i.attempt, i.principal, i.request_id, i.serial, i.unknown, i.upstream_key,
               i.upstream_digest, i.settle_delay_s, i.response_days, i.key_days,
               v_now, v_now + i.deadline_ms * interval '1 millisecond', i.outline
          from input i
          left join gateway.entities e on e.tenant = i.tenant and e.entity = i.entity
         where (i.fence is null or i.fence >= e.fence)
           and not coalesce(gateway.is_not_held(i.fence, e.held, i.issuer_here), false)
           and (not i.serial or (e.entity is not null and e.open_key is null))
         order by i.tenant, i.key_digest
            on conflict (tenant, key_digest) do nothing
        returning tenant, key_digest, serial, attempt, deadline
    )
    update gateway.entities e
       -- An entity whose fences are issued here has the highest that was; nobody else raises it.
       set fence = case when e.held is null and i.issuer_here is not true
                        then greatest(e.fence, i.fence) else e.fence end,
           open_key = case when n.serial then n.key_digest else e.open_key end,
           open_attempt = case when n.serial then n.attempt else e.open_attempt end,
           open_until = case when n.serial then n.deadline else e.open_until end,
           touched_at = v_now
      from input i
      left join inserted n on n.tenant = i.tenant and n.key_digest = i.key_digest
     where e.tenant = i.tenant and e.entity = i.entity
       and (i.fence is not null or i.serial)
       and ((i.fence > e.fence and e.held is null and i.issuer_here is not true)
            or n.serial or e.touched_at < v_now - interval '1 day');

    -- A fresh snapshot and a fresh reading: the insert above may have waited for another's commit.
    v_now := gateway.clock();

    return query
    with input as (
        select * from unnest(
            p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence,
            p_attempt, p_principal, p_request_id, p_serial, p_issuer_here
        ) with ordinality as i (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence,
            attempt, principal, request_id, serial, issuer_here, ord)
    ), judged as (
        select i.*, e.fence as mark, e.held as held, c.attempt as c_attempt,
               case when c.policy <> i.policy or c.entity <> i.entity then false
                    when c.rules = i.rules then c.fingerprint = i.fingerprint end as same,
               case when c.settled_at is not null then 'settled'
                    when c.deadline <= v_now then 'unknown'
                    when c.attempt is not null then 'in-flight' end as state,
               (extract(epoch from c.deadline - v_now) * 1000)::bigint as remaining_ms,
               c.status, c.headers, c.body, c.settled_by, c.evidence_status,
               o.key as o_key,
               case when e.open_until <= v_now then 'unknown' else 'in-flight' end as o_state,
               (extract(epoch from e.open_until - v_now) * 1000)::bigint as o_remaining_ms,
               c.attempt is distinct from i.attempt and i.fence < e.fence as stale,
               c.attempt is distinct from i.attempt and i.fence >= e.fence
                   and gateway.is_not_held(i.fence, e.held, i.issuer_here) as not_held
          from input i
          left join gateway.entities e
            on e.tenant = i.tenant and e.entity = i.entity and (i.fence is not null or i.serial)
          left join gateway.commands c on c.tenant = i.tenant and c.key_digest = i.key_digest
          left join gateway.commands o
            on i.serial and o.tenant = e.tenant and o.key_digest = e.open_key
               and e.open_key is distinct from i.key_digest
    ), refused as (
        insert into gateway.audit (
            tenant, id, at, event, principal, policy, entity, key, fence, high_water_mark, attempt,
            request_id, fingerprint, reason)
        select j.tenant, gateway.audit_id(j.attempt, r.event), v_now, r.event, j.principal,
               j.policy, j.entity, j.key, j.fence, j.mark, j.attempt, j.request_id, j.fingerprint,
               r.reason
          from judged j
         cross join lateral (
            select 'fence_stale', format('fence %s is below the high-water mark %s', j.fence, j.mark)
             where j.stale
            union all
            select 'fence_refused', format('fence %s is not the one now held: %s', j.fence, case
                       when j.held is null then 'none has been issued here'
                       when j.held = 0 then 'nobody holds one'
                       else j.held::text end)
             where j.not_held
            union all
            select 'key_reused', format('the key already names another command, now %s', j.state)
             where j.stale is not true and j.not_held is not true and j.same is false
               and j.c_attempt is distinct from j.attempt
         ) as r (event, reason)
            on conflict (tenant, id) do nothing
    )
    select j.ord, j.mark, j.held, j.c_attempt, j.state, j.same, j.remaining_ms,
           j.status,
           case when j.stale is not true and j.not_held is not true and j.same is not false
                then j.headers end,
           case when j.stale is not true and j.not_held is not true and j.same is not false
                then j.body end,
           j.settled_by, j.evidence_status, j.o_key,
           case when j.o_key is not null then j.o_state end, j.o_remaining_ms
      from judged j;
end
$$;

-- The admit of the release before, which may still be running: without outlines, and no policy issues
-- here. A fence that row 2 refuses is not admitted either, and finds no key: that release knows no
-- name for it, tries again and answers `overloaded`, or what it makes of another command of a serial
-- entity.
create or replace function gateway.admit(
    p_tenant int[], p_key_digest bytea[], p_key text[], p_policy text[], p_entity text[],
    p_fingerprint bytea[], p_rules bytea[], p_fence bigint[], p_attempt uuid[],
    p_principal text[], p_request_id text[], p_serial boolean[], p_unknown text[],
    p_upstream_key text[], p_upstream_digest bytea[],
    p_deadline_ms int[], p_settle_delay_s int[], p_response_days int[], p_key_days int[]
) returns table (
    ord bigint, mark bigint,
    known_attempt uuid, known_state text, known_same boolean, known_remaining_ms bigint,
    known_status int, known_headers bytea, known_body bytea, known_settled_by text,
    known_evidence_status int,
    open_key text, open_state text, open_remaining_ms bigint
)
language sql
as $$
    select a.ord, a.mark, k.known_attempt, k.known_state, k.known_same, k.known_remaining_ms,
           k.known_status, k.known_headers, k.known_body, k.known_settled_by,
           k.known_evidence_status, a.open_key, a.open_state, a.open_remaining_ms
      from gateway.admit(
        p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence, p_attempt,
        p_principal, p_request_id, p_serial, p_unknown, p_upstream_key, p_upstream_digest,
        p_deadline_ms, p_settle_delay_s, p_response_days, p_key_days, null::bytea[],
        null::boolean[]) as a
      join unnest(p_fence, p_attempt) with ordinality as i (fence, attempt, ord) on i.ord = a.ord
      left join lateral (select a.*) as k
        on a.known_attempt = i.attempt or i.fence < a.mark
           or gateway.is_not_held(i.fence, a.held, null) is not true;
$$;
