-- The outline of a request: digests of its parts, from which `explain` names the paths in which a
-- re-used key's request differs from its first. Null where the command was recorded before this
-- migration, or by settle_unmatched.
--
-- 256 bytes: 5 fixed parts, 32 headers and 32 members take 234 (gateway/core/outline.py). The check is
-- not validated: older rows are all null, and looking at each would stop every admit meanwhile.
alter table gateway.commands
    add column outline bytea,
    add constraint commands_outline_check check (octet_length(outline) <= 256) not valid;
-- Digests do not compress.
alter table gateway.commands alter column outline set storage external;

-- Admit as before (see 0002 for its guard), and record the outline. p_outline null: of none.
create function gateway.admit(
    p_tenant int[], p_key_digest bytea[], p_key text[], p_policy text[], p_entity text[],
    p_fingerprint bytea[], p_rules bytea[], p_fence bigint[], p_attempt uuid[],
    p_principal text[], p_request_id text[], p_serial boolean[], p_unknown text[],
    p_upstream_key text[], p_upstream_digest bytea[],
    p_deadline_ms int[], p_settle_delay_s int[], p_response_days int[], p_key_days int[],
    p_outline bytea[]
) returns table (
    ord bigint, mark bigint,
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
            p_outline
        ) as i (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence,
            attempt, principal, request_id, serial, unknown, upstream_key,
            upstream_digest, deadline_ms, settle_delay_s, response_days, key_days, outline)
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
           and (not i.serial or (e.entity is not null and e.open_key is null))
         order by i.tenant, i.key_digest
            on conflict (tenant, key_digest) do nothing
        returning tenant, key_digest, serial, attempt, deadline
    )
    update gateway.entities e
       set fence = greatest(e.fence, i.fence),
           open_key = case when n.serial then n.key_digest else e.open_key end,
           open_attempt = case when n.serial then n.attempt else e.open_attempt end,
           open_until = case when n.serial then n.deadline else e.open_until end,
           touched_at = v_now
      from input i
      left join inserted n on n.tenant = i.tenant and n.key_digest = i.key_digest
     where e.tenant = i.tenant and e.entity = i.entity
       and (i.fence is not null or i.serial)
       and (i.fence > e.fence or n.serial or e.touched_at < v_now - interval '1 day');

    -- A fresh snapshot and a fresh reading: the insert above may have waited for another's commit.
    v_now := gateway.clock();

    return query
    with input as (
        select * from unnest(
            p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence,
            p_attempt, p_principal, p_request_id, p_serial
        ) with ordinality as i (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence,
            attempt, principal, request_id, serial, ord)
    ), judged as (
        select i.*, e.fence as mark, c.attempt as c_attempt,
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
               c.attempt is distinct from i.attempt and i.fence < e.fence as stale
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
            select 'key_reused', format('the key already names another command, now %s', j.state)
             where j.stale is not true and j.same is false
               and j.c_attempt is distinct from j.attempt
         ) as r (event, reason)
            on conflict (tenant, id) do nothing
    )
    select j.ord, j.mark, j.c_attempt, j.state, j.same, j.remaining_ms,
           j.status,
           case when j.stale is not true and j.same is not false then j.headers end,
           case when j.stale is not true and j.same is not false then j.body end,
           j.settled_by, j.evidence_status, j.o_key,
           case when j.o_key is not null then j.o_state end, j.o_remaining_ms
      from judged j;
end
$$;

-- The admit of the release before, which may still be running: without outlines.
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
    select * from gateway.admit(
        p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence, p_attempt,
        p_principal, p_request_id, p_serial, p_unknown, p_upstream_key, p_upstream_digest,
        p_deadline_ms, p_settle_delay_s, p_response_days, p_key_days, null::bytea[]);
$$;
