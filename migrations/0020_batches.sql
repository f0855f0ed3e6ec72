-- Batches: what is usual of admit and settle in as few statements as it takes; all else goes to
-- gateway.admit and gateway.settle, which judge it as before, in the same transaction.

-- Custom plans are made anew for each call, for arrays are constants then, and cost more than the work.
alter function gateway.admit(
    int[], bytea[], text[], text[], text[], bytea[], bytea[], bigint[], uuid[], text[], text[],
    boolean[], text[], text[], bytea[], int[], int[], int[], int[], bytea[], boolean[], bytea[]
) set plan_cache_mode = force_generic_plan;
alter function gateway.settle(int[], bytea[], text[], uuid[], int[], bytea[], bytea[])
    set plan_cache_mode = force_generic_plan;
alter function gateway.release(int[], bytea[], text[], uuid[], text[], boolean[])
    set plan_cache_mode = force_generic_plan;
alter function gateway.hold(int[], bytea[], text[], uuid[], text[], int[], bytea[])
    set plan_cache_mode = force_generic_plan;

-- Write the evidence of refusals, of which no two are equal: as gateway.refuse did for one (see 0019 for
-- what is equal, and how many have rows of their own).
-- The audit's look-ups are written as pairs that are compared, in the order of the index that is meant. By
-- "tenant = … and id = …" the planner preferred an index that begins with the tenant alike on fresh
-- tables, and each refusal read the tenant's whole audit.
-- Guard: append-only; what is written or counted already stays as it is.
create function gateway.refuse_all(
    p_at timestamptz, p_tenant int[], p_id uuid[], p_event text[], p_principal text[], p_policy text[],
    p_entity text[], p_key text[], p_fence bigint[], p_mark bigint[], p_attempt uuid[], p_job text[],
    p_request_id text[], p_fingerprint bytea[], p_reason text[], p_by_reason boolean
) returns void
language sql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
    with named as materialized (
        select i.*, floor(extract(epoch from p_at) / 3600)::bigint as hour,
               jsonb_build_array(i.event, i.policy, i.entity, i.key, i.fence, i.job, i.principal,
                                 case when p_by_reason then i.reason end)::text as alike
          from unnest(
            p_tenant, p_id, p_event, p_principal, p_policy, p_entity, p_key, p_fence, p_mark, p_attempt,
            p_job, p_request_id, p_fingerprint, p_reason)
               as i (tenant, id, event, principal, policy, entity, key, fence, mark, attempt,
                     job, request_id, fingerprint, reason)
    ), refused as materialized (
        select n.*, case when s.equal >= 10 then gateway.shared_row_id(n.alike, n.hour) else n.id end
                    as row_id
          from named n
         cross join lateral (
            select count(*) as equal
              from (
                select a.event, a.policy, a.key, a.fence, a.job, a.principal, a.reason
                  from gateway.audit a
                 where a.tenant = n.tenant
                   and (a.entity, a.at) > (n.entity, p_at - interval '1 hour')
                   and (a.entity, a.at) <= (n.entity, timestamptz 'infinity')
                 order by a.entity desc, a.at desc
                 limit 200
              ) a
             where a.event = n.event
               and (a.policy, a.key, a.fence, a.job, a.principal)
                   is not distinct from (n.policy, n.key, n.fence, n.job, n.principal)
               and (not p_by_reason or a.reason = n.reason)) s
         where (
                select a.tenant = n.tenant and a.id = n.id from gateway.audit a
                 where (a.tenant, a.id) >= (n.tenant, n.id)
                 order by a.tenant, a.id
                 limit 1) is not true
           and not exists (
                select from gateway.audit_repeats r
                 where r.tenant = n.tenant and n.id = any (r.recent)
                   and r.id in (gateway.shared_row_id(n.alike, n.hour),
                                gateway.shared_row_id(n.alike, n.hour - 1)))
    ), written as (
        insert into gateway.audit (
            tenant, id, at, event, principal, policy, entity, key, fence, high_water_mark, attempt, job,
            request_id, fingerprint, reason)
        select r.tenant, r.row_id, p_at, r.event, r.principal, r.policy, r.entity, r.key, r.fence,
               r.mark, r.attempt, r.job, r.request_id, r.fingerprint, r.reason
          from refused r
         order by r.tenant, r.row_id
            on conflict (tenant, id) do nothing
    )
    insert into gateway.audit_repeats as r (tenant, id, times, last_at, recent)
    select n.tenant, n.row_id, 1, p_at, array[n.id]
      from refused n
     where n.row_id <> n.id
     order by n.tenant, n.row_id
        on conflict (tenant, id) do update
       set times = r.times + 1, last_at = greatest(r.last_at, excluded.last_at),
           recent = (excluded.recent || r.recent)[1:64]
     where not excluded.recent[1] = any (r.recent);
$$;

create or replace function gateway.refuse(
    p_tenant int, p_id uuid, p_at timestamptz, p_event text, p_principal text, p_policy text,
    p_entity text, p_key text, p_fence bigint, p_mark bigint, p_attempt uuid, p_job text,
    p_request_id text, p_fingerprint bytea, p_reason text, p_by_reason boolean
) returns void
language plpgsql
as $$
begin
    perform gateway.refuse_all(
        p_at, array[p_tenant], array[p_id], array[p_event], array[p_principal], array[p_policy],
        array[p_entity], array[p_key], array[p_fence], array[p_mark], array[p_attempt], array[p_job],
        array[p_request_id], array[p_fingerprint], array[p_reason], p_by_reason);
end
$$;

-- Admit a batch: those fresh at once, the others as gateway.admit does.
--
-- Guard: that of gateway.admit. Fresh is a command whose key is new and whose entity is new as well, or
-- was locked here, is free, and has no higher mark and no other fence that is held.
--
-- p_wait false: nobody waits for a row that somebody else has locked. Such an entity is passed over
-- ("elsewhere"), and its command is to be asked about again by itself, with p_wait. What may have to be
-- waited for all the same, an entity or a key that another transaction is just making, is cut off soon
-- (55P03), and nothing is done then.
--
-- Returns rows of what is not fresh, as gateway.admit does, or with the state "elsewhere"; and of what is fresh
-- where the caller cannot know the mark, or that fences are issued here.
create function gateway.admit_batch(
    p_tenant int[], p_key_digest bytea[], p_key text[], p_policy text[], p_entity text[],
    p_fingerprint bytea[], p_rules bytea[], p_fence bigint[], p_attempt uuid[],
    p_principal text[], p_request_id text[], p_serial boolean[], p_unknown text[],
    p_upstream_key text[], p_upstream_digest bytea[],
    p_deadline_ms int[], p_settle_delay_s int[], p_response_days int[], p_key_days int[],
    p_outline bytea[], p_issuer_here boolean[], p_probe_target bytea[], p_wait boolean
) returns table (
    ord bigint, mark bigint, held bigint,
    known_attempt uuid, known_state text, known_same boolean, known_remaining_ms bigint,
    known_status int, known_headers bytea, known_body bytea, known_settled_by text,
    known_evidence_status int,
    open_key text, open_state text, open_remaining_ms bigint,
    known_unknown text, known_age_ms bigint, known_upstream_key text, known_account_same boolean
)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    -- What this call has made bears it as xmin, and v_began, for such numbers come again after 2^32.
    -- Under a savepoint nothing bears it, and is locked like the rest.
    v_own    xid := pg_current_xact_id()::xid;
    v_began  timestamptz := gateway.clock();
    v_now    timestamptz;
    v_what   text[];
    v_held   bigint[];
    v_mark   bigint[];
    v_untouched bool;
    v_fresh  bigint;
    v_count  bigint;
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'the database runs transactions as %, and the gateway needs read committed; reset default_transaction_isolation for the database and the role',
            current_setting('transaction_isolation') using errcode = 'feature_not_supported';
    end if;
    if not p_wait then
        perform set_config('lock_timeout', '50', true);
    end if;

    -- New entities as they will be: the insert of the command follows. Nobody sees them before.
    insert into gateway.entities (
        tenant, entity, fence, open_key, open_attempt, open_until, touched_at)
    select i.tenant, i.entity, coalesce(case when not i.here then i.fence end, 0),
           case when i.takes then i.key_digest end, case when i.takes then i.attempt end,
           case when i.takes then v_began + i.deadline_ms * interval '1 millisecond' end, v_began
      from (
        select i.*, i.serial and (not i.here or i.fence is null) as takes
          from unnest(p_tenant, p_entity, p_fence, p_serial, p_issuer_here, p_key_digest, p_attempt,
                      p_deadline_ms)
               as i (tenant, entity, fence, serial, here, key_digest, attempt, deadline_ms)
         where i.fence is not null or i.serial) i
     order by i.tenant, i.entity collate "C"
        on conflict (tenant, entity) do nothing;
    get diagnostics v_count = row_count;

    if v_count = cardinality(p_tenant) and true <> all (p_issuer_here) then
        v_what := array_fill('made'::text, array[v_count::int]);
    else
        if p_wait then
            perform 1
               from gateway.entities e
               join unnest(p_tenant, p_entity, p_fence, p_serial) as i (tenant, entity, fence, serial)
                 on e.tenant = i.tenant and e.entity = i.entity
              where (i.fence is not null or i.serial)
                and (e.xmin <> v_own or e.touched_at <> v_began)
              order by e.tenant, e.entity
                for no key update of e;
        end if;
        select array_agg(case
                   when i.fence is null and not i.serial then 'bare'
                   when m.fence is not null then case
                       when i.here and i.fence is not null then 'other' else 'made' end
                   when e.fence is null then case when p_wait then 'other' else 'elsewhere' end
                   when i.fence < e.fence then case
                       when e.open_key is not null or exists (
                            select from gateway.commands c
                             where c.tenant = i.tenant and c.key_digest = i.key_digest)
                       then 'other' else 'stale' end
                   when gateway.is_not_held(i.fence, e.held, i.here)
                        or i.serial and e.open_key is not null then 'other'
                   else 'fresh' end order by i.ord),
               array_agg(e.held order by i.ord), array_agg(e.fence order by i.ord),
               bool_or(i.fence < e.fence and e.touched_at < v_began - interval '1 day')
          into v_what, v_held, v_mark, v_untouched
          from unnest(p_tenant, p_entity, p_fence, p_serial, p_issuer_here, p_key_digest)
               with ordinality as i (tenant, entity, fence, serial, here, key_digest, ord)
          left join lateral (
            select e.fence from gateway.entities e
             where e.tenant = i.tenant and e.entity = i.entity
               and e.xmin = v_own and e.touched_at = v_began
             limit 1) m on true
          left join lateral (
            select e.fence, e.held, e.open_key, e.touched_at from gateway.entities e
             where e.tenant = i.tenant and e.entity = i.entity
               and (e.xmin <> v_own or e.touched_at <> v_began)
               and (i.serial or i.fence is not null)
             limit 1
               for no key update skip locked) e on true;
    end if;
    v_now := gateway.clock();

    insert into gateway.commands (
        tenant, key_digest, key, policy, entity, fingerprint, rules, fence, attempt, principal,
        request_id, serial, unknown, upstream_key, upstream_digest, settle_delay_s,
        response_days, key_days, admitted_at, deadline, outline, probe_target)
    select i.tenant, i.key_digest, i.key, i.policy, i.entity, i.fingerprint, i.rules, i.fence,
           i.attempt, i.principal, i.request_id, i.serial, i.unknown, i.upstream_key,
           i.upstream_digest, i.settle_delay_s, i.response_days, i.key_days, i.at,
           i.at + i.deadline_ms * interval '1 millisecond', i.outline, i.probe_target
      from (
        select i.*, case i.what when 'made' then v_began else v_now end as at
          from unnest(
            p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence,
            p_attempt, p_principal, p_request_id, p_serial, p_unknown, p_upstream_key,
            p_upstream_digest, p_deadline_ms, p_settle_delay_s, p_response_days, p_key_days,
            p_outline, p_probe_target, v_what
        ) as i (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence,
            attempt, principal, request_id, serial, unknown, upstream_key,
            upstream_digest, deadline_ms, settle_delay_s, response_days, key_days, outline,
            probe_target, what)
         where i.what in ('made', 'fresh', 'bare')) i
     order by i.tenant, i.key_digest
        on conflict (tenant, key_digest) do nothing;
    get diagnostics v_count = row_count;

    v_fresh := (select count(*) from unnest(v_what) as w (what) where w.what in ('made', 'fresh', 'bare'));
    if v_count < v_fresh then
        select array_agg(case when i.what in ('elsewhere', 'stale', 'other') or c.attempt is not null
                              then i.what else 'other' end order by i.ord)
          into v_what
          from unnest(p_tenant, p_key_digest, p_attempt, v_what) with ordinality
               as i (tenant, key_digest, attempt, what, ord)
          left join lateral (
            select c.attempt from gateway.commands c
             where c.tenant = i.tenant and c.key_digest = i.key_digest
               and c.attempt = i.attempt and c.xmin = v_own
             limit 1) c on true;
        -- The slots that were taken for them beforehand.
        update gateway.entities e
           set open_key = null, open_attempt = null, open_until = null
          from unnest(p_tenant, p_entity, p_attempt, v_what) as i (tenant, entity, attempt, what)
         where i.what = 'other' and e.tenant = i.tenant and e.entity = i.entity
           and e.open_attempt = i.attempt and e.xmin = v_own and e.touched_at = v_began;
    end if;

    if 'fresh' = any (v_what) then
        update gateway.entities e
           set fence = case when e.held is null then greatest(e.fence, i.fence) else e.fence end,
               open_key = case when i.serial then i.key_digest else e.open_key end,
               open_attempt = case when i.serial then i.attempt else e.open_attempt end,
               open_until = case when i.serial then v_now + i.deadline_ms * interval '1 millisecond'
                                 else e.open_until end,
               touched_at = v_now
          from unnest(p_tenant, p_entity, p_fence, p_serial, p_key_digest, p_attempt, p_deadline_ms,
                      v_what)
               as i (tenant, entity, fence, serial, key_digest, attempt, deadline_ms, what)
         where i.what = 'fresh' and e.tenant = i.tenant and e.entity = i.entity
           and (i.serial or (i.fence > e.fence and e.held is null)
                or e.touched_at < v_now - interval '1 day');
        return query
        select i.ord, case when i.held is null then greatest(i.mark, i.fence) else i.mark end,
               i.held, i.attempt, 'in-flight', true, i.deadline_ms::bigint,
               null::int, null::bytea, null::bytea, null, null::int, null, null, null::bigint,
               i.unknown, 0::bigint, i.upstream_key, true
          from unnest(p_fence, p_attempt, p_deadline_ms, p_unknown, p_upstream_key, v_mark, v_held,
                      v_what)
               with ordinality
               as i (fence, attempt, deadline_ms, unknown, upstream_key, mark, held, what, ord)
         where i.what = 'fresh' and (i.held is not null or i.fence is null);
    end if;

    -- A mark is remembered from the last time that somebody was held against it.
    if v_untouched then
        update gateway.entities e
           set touched_at = v_now
          from unnest(p_tenant, p_entity, v_what) as i (tenant, entity, what)
         where i.what = 'stale' and e.tenant = i.tenant and e.entity = i.entity
           and e.touched_at < v_now - interval '1 day';
    end if;

    if 'stale' = any (v_what) then
        perform gateway.refuse_all(
                   v_now, array_agg(i.tenant),
                   array_agg(gateway.audit_id(i.attempt, 'fence_stale')),
                   array_agg('fence_stale'::text), array_agg(i.principal), array_agg(i.policy),
                   array_agg(i.entity), array_agg(i.key), array_agg(i.fence), array_agg(i.mark),
                   array_agg(i.attempt), array_agg(null::text), array_agg(i.request_id),
                   array_agg(i.fingerprint),
                   array_agg(format('fence %s is below the high-water mark %s', i.fence, i.mark)), true)
           from unnest(p_tenant, p_attempt, p_principal, p_policy, p_entity, p_key, p_fence, v_mark,
                       p_request_id, p_fingerprint, v_what)
                as i (tenant, attempt, principal, policy, entity, key, fence, mark,
                      request_id, fingerprint, what)
          where i.what = 'stale';
        return query
        select i.ord, i.mark, i.held, null::uuid, null, null::boolean, null::bigint,
               null::int, null::bytea, null::bytea, null, null::int, null, null, null::bigint,
               null, null::bigint, null, null::boolean
          from unnest(v_mark, v_held, v_what) with ordinality as i (mark, held, what, ord)
         where i.what = 'stale';
    end if;

    if 'elsewhere' = any (v_what) then
        return query
        select i.ord, null::bigint, null::bigint, null::uuid, i.what, null::boolean, null::bigint,
               null::int, null::bytea, null::bytea, null, null::int, null, null, null::bigint,
               null, null::bigint, null, null::boolean
          from unnest(v_what) with ordinality as i (what, ord)
         where i.what = 'elsewhere';
    end if;

    if 'other' = any (v_what) then
        return query
        select r.ords[a.ord], a.mark, a.held, a.known_attempt, a.known_state, a.known_same,
               a.known_remaining_ms, a.known_status, a.known_headers, a.known_body,
               a.known_settled_by, a.known_evidence_status, a.open_key, a.open_state,
               a.open_remaining_ms, a.known_unknown, a.known_age_ms, a.known_upstream_key,
               a.known_account_same
          from (
            select array_agg(i.ord) as ords,
                   array_agg(i.tenant) as tenant, array_agg(i.key_digest) as key_digest,
                   array_agg(i.key) as key, array_agg(i.policy) as policy,
                   array_agg(i.entity) as entity, array_agg(i.fingerprint) as fingerprint,
                   array_agg(i.rules) as rules, array_agg(i.fence) as fence,
                   array_agg(i.attempt) as attempt, array_agg(i.principal) as principal,
                   array_agg(i.request_id) as request_id, array_agg(i.serial) as serial,
                   array_agg(i.unknown) as unknown, array_agg(i.upstream_key) as upstream_key,
                   array_agg(i.upstream_digest) as upstream_digest,
                   array_agg(i.deadline_ms) as deadline_ms,
                   array_agg(i.settle_delay_s) as settle_delay_s,
                   array_agg(i.response_days) as response_days, array_agg(i.key_days) as key_days,
                   array_agg(i.outline) as outline, array_agg(i.issuer_here) as issuer_here,
                   array_agg(i.probe_target) as probe_target
              from unnest(
                p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence,
                p_attempt, p_principal, p_request_id, p_serial, p_unknown, p_upstream_key,
                p_upstream_digest, p_deadline_ms, p_settle_delay_s, p_response_days, p_key_days,
                p_outline, p_issuer_here, p_probe_target, v_what
            ) with ordinality as i (
                tenant, key_digest, key, policy, entity, fingerprint, rules, fence,
                attempt, principal, request_id, serial, unknown, upstream_key,
                upstream_digest, deadline_ms, settle_delay_s, response_days, key_days, outline,
                issuer_here, probe_target, what, ord)
             where i.what = 'other') r
         cross join lateral gateway.admit(
            r.tenant, r.key_digest, r.key, r.policy, r.entity, r.fingerprint, r.rules, r.fence,
            r.attempt, r.principal, r.request_id, r.serial, r.unknown, r.upstream_key,
            r.upstream_digest, r.deadline_ms, r.settle_delay_s, r.response_days, r.key_days,
            r.outline, r.issuer_here, r.probe_target) a;
    end if;
end
$$;

-- Settle a batch: those answered in time by their own attempts at once, the others as gateway.settle does.
--
-- Guard: that of gateway.settle. p_wait false: as in admit_batch, but what is locked cuts all off.
-- Returns rows of what was not settled in time only.
create function gateway.settle_batch(
    p_tenant int[], p_key_digest bytea[], p_entity text[], p_attempt uuid[],
    p_status int[], p_headers bytea[], p_body bytea[], p_wait boolean
) returns table (ord bigint, result text)
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_own   xid := pg_current_xact_id()::xid;
    v_now   timestamptz := gateway.clock();
    v_count bigint;
begin
    if not p_wait then
        perform set_config('lock_timeout', '50', true);
    end if;

    -- A slot that names an attempt means that its command is that attempt's and not settled: whatever
    -- changes the command changes the slot in the same statement. So it is settled below, or by settle.
    update gateway.entities e
       set open_key = null, open_attempt = null, open_until = null, touched_at = v_now
      from (
        select * from unnest(p_tenant, p_entity, p_key_digest, p_attempt)
               as i (tenant, entity, key_digest, attempt)
         order by i.tenant, i.entity collate "C") i
     where e.tenant = i.tenant and e.entity = i.entity
       and e.open_key = i.key_digest and e.open_attempt = i.attempt;
    v_now := gateway.clock();

    update gateway.commands c
       set settled_at = v_now, settled_by = 'answer',
           status = i.status, headers = i.headers, body = i.body,
           expires_at = v_now + make_interval(days => c.key_days)
      from (
        select * from unnest(p_tenant, p_key_digest, p_attempt, p_status, p_headers, p_body)
               as i (tenant, key_digest, attempt, status, headers, body)
         order by i.tenant, i.key_digest) i
     where c.tenant = i.tenant and c.key_digest = i.key_digest and c.attempt = i.attempt
       and c.settled_at is null and c.evidence_at is null and c.deadline > v_now and c.earlier is null;
    get diagnostics v_count = row_count;

    if v_count < cardinality(p_tenant) then
        return query
        select r.ords[s.ord], s.result
          from (
            select array_agg(i.ord) as ords, array_agg(i.tenant) as tenant,
                   array_agg(i.key_digest) as key_digest, array_agg(i.entity) as entity,
                   array_agg(i.attempt) as attempt, array_agg(i.status) as status,
                   array_agg(i.headers) as headers, array_agg(i.body) as body
              from unnest(p_tenant, p_key_digest, p_entity, p_attempt, p_status, p_headers, p_body)
                   with ordinality
                   as i (tenant, key_digest, entity, attempt, status, headers, body, ord)
             where not exists (
                select from gateway.commands c
                 where c.tenant = i.tenant and c.key_digest = i.key_digest
                   and c.attempt = i.attempt and c.xmin = v_own and c.settled_at = v_now)) r
         cross join lateral gateway.settle(
            r.tenant, r.key_digest, r.entity, r.attempt, r.status, r.headers, r.body) s;
    end if;
end
$$;
