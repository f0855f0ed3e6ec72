-- Floods: equal refusals share an audit row.
--
-- A worker that does not hear that it was replaced may send the same thing for ever. The first ten
-- equal refusals in an hour have a row each; those behind them share one an hour, which says how many
-- they are and when the last was. It is written as before: in the statement that refuses, so before
-- anybody is answered.

-- What shares a row of the audit. The audit itself stays append-only: a shared row is the first of them.
-- times: the row itself included. recent: the last 64 that are counted, by the id that a row of their
-- own would have had, so that a statement repeated after a lost answer counts once.
create table gateway.audit_repeats (
    tenant  int not null,
    id      uuid not null,
    times   bigint not null,
    last_at timestamptz not null,
    recent  uuid[] not null,
    constraint audit_repeats_pkey primary key (tenant, id),
    constraint audit_repeats_audit_fkey foreign key (tenant, id)
        references gateway.audit (tenant, id) on delete cascade
) with (fillfactor = 50);

create function gateway.shared_row_id(alike text, hour bigint) returns uuid
    language sql immutable
    return encode(substring(sha256(convert_to(alike || hour, 'UTF8')) from 1 for 16), 'hex')::uuid;

-- Write the evidence of one refusal. Equal are tenant, entity, event, policy, key, fence, job and
-- principal, and with p_by_reason the reason. Looked at are the last 200 rows of the entity at most, so
-- that who varies what it sends pays for rows, not for searches. p_id names this refusal.
-- Guard: append-only; what is written or counted already stays as it is.
create function gateway.refuse(
    p_tenant int, p_id uuid, p_at timestamptz, p_event text, p_principal text, p_policy text,
    p_entity text, p_key text, p_fence bigint, p_mark bigint, p_attempt uuid, p_job text,
    p_request_id text, p_fingerprint bytea, p_reason text, p_by_reason boolean
) returns void
language plpgsql
set enable_seqscan = off
as $$
declare
    v_equal bigint;
    v_id    uuid := p_id;
    v_alike text := jsonb_build_array(p_event, p_policy, p_entity, p_key, p_fence, p_job, p_principal,
                                      case when p_by_reason then p_reason end)::text;
    v_hour  bigint := floor(extract(epoch from p_at) / 3600);
begin
    if exists (select from gateway.audit a where a.tenant = p_tenant and a.id = p_id)
       or exists (
           select from gateway.audit_repeats r
            where r.tenant = p_tenant and p_id = any (r.recent)
              and r.id in (gateway.shared_row_id(v_alike, v_hour),
                           gateway.shared_row_id(v_alike, v_hour - 1)))
    then
        return;
    end if;
    select count(*) into v_equal
      from (
        select a.event, a.policy, a.key, a.fence, a.job, a.principal, a.reason
          from gateway.audit a
         where a.tenant = p_tenant and a.entity = p_entity and a.at > p_at - interval '1 hour'
         order by a.at desc
         limit 200
      ) a
     where a.event = p_event
       and (a.policy, a.key, a.fence, a.job, a.principal)
           is not distinct from (p_policy, p_key, p_fence, p_job, p_principal)
       and (not p_by_reason or a.reason = p_reason);
    if v_equal >= 10 then
        v_id := gateway.shared_row_id(v_alike, v_hour);
    end if;

    insert into gateway.audit (
        tenant, id, at, event, principal, policy, entity, key, fence, high_water_mark, attempt, job,
        request_id, fingerprint, reason)
    values (
        p_tenant, v_id, p_at, p_event, p_principal, p_policy, p_entity, p_key, p_fence, p_mark,
        p_attempt, p_job, p_request_id, p_fingerprint, p_reason)
        on conflict (tenant, id) do nothing;
    if v_id <> p_id then
        insert into gateway.audit_repeats as r (tenant, id, times, last_at, recent)
        values (p_tenant, v_id, 1, p_at, array[p_id])
            on conflict (tenant, id) do update
           set times = r.times + 1, last_at = greatest(r.last_at, excluded.last_at),
               recent = (p_id || r.recent)[1:64]
         where not p_id = any (r.recent);
    end if;
end
$$;

-- Admit as before (see 0012 for its guard), with equal refusals sharing a row.
create or replace function gateway.admit(
    p_tenant int[], p_key_digest bytea[], p_key text[], p_policy text[], p_entity text[],
    p_fingerprint bytea[], p_rules bytea[], p_fence bigint[], p_attempt uuid[],
    p_principal text[], p_request_id text[], p_serial boolean[], p_unknown text[],
    p_upstream_key text[], p_upstream_digest bytea[],
    p_deadline_ms int[], p_settle_delay_s int[], p_response_days int[], p_key_days int[],
    p_outline bytea[], p_issuer_here boolean[], p_probe_target bytea[]
) returns table (
    ord bigint, mark bigint, held bigint,
    known_attempt uuid, known_state text, known_same boolean, known_remaining_ms bigint,
    known_status int, known_headers bytea, known_body bytea, known_settled_by text,
    known_evidence_status int,
    open_key text, open_state text, open_remaining_ms bigint,
    known_unknown text, known_age_ms bigint, known_upstream_key text, known_account_same boolean
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
            p_outline, p_issuer_here, p_probe_target
        ) as i (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence,
            attempt, principal, request_id, serial, unknown, upstream_key,
            upstream_digest, deadline_ms, settle_delay_s, response_days, key_days, outline, issuer_here,
            probe_target)
    ), inserted as (
        insert into gateway.commands (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence, attempt, principal,
            request_id, serial, unknown, upstream_key, upstream_digest, settle_delay_s,
            response_days, key_days, admitted_at, deadline, outline, probe_target)
        select i.tenant, i.key_digest, i.key, i.policy, i.entity, i.fingerprint, i.rules, i.fence,
               i.attempt, i.principal, i.request_id, i.serial, i.unknown, i.upstream_key,
               i.upstream_digest, i.settle_delay_s, i.response_days, i.key_days,
               v_now, v_now + i.deadline_ms * interval '1 millisecond', i.outline,
               i.probe_target
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
            p_attempt, p_principal, p_request_id, p_serial, p_issuer_here, p_upstream_digest
        ) with ordinality as i (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence,
            attempt, principal, request_id, serial, issuer_here, upstream_digest, ord)
    ), judged as (
        select i.*, e.fence as mark, e.held as held, c.attempt as c_attempt,
               case when c.policy <> i.policy or c.entity <> i.entity then false
                    when c.rules = i.rules then c.fingerprint = i.fingerprint end as same,
               case when c.settled_at is not null then 'settled'
                    when c.deadline <= v_now then 'unknown'
                    when c.attempt is not null then 'in-flight' end as state,
               (extract(epoch from c.deadline - v_now) * 1000)::bigint as remaining_ms,
               c.status, c.headers, c.body, c.settled_by, c.evidence_status,
               c.unknown as c_unknown, c.upstream_key as c_upstream_key,
               (extract(epoch from v_now - case
                   when c.unknown = 'resend' and c.settled_at is null and c.deadline <= v_now
                   then gateway.first_sent(c.tenant, c.key_digest, c.admitted_at)
                   else c.admitted_at end) * 1000)::bigint as age_ms,
               c.upstream_digest = i.upstream_digest as account_same,
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
    ), refused as materialized (
        select gateway.refuse(
                   j.tenant, gateway.audit_id(j.attempt, j.event), v_now, j.event, j.principal,
                   j.policy, j.entity, j.key, j.fence, j.mark, j.attempt, null, j.request_id,
                   j.fingerprint, j.reason, true)
          from (
            select j.*, r.event, r.reason
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
             order by j.tenant, j.entity, j.key
          ) j
    )
    select j.ord, j.mark, j.held, j.c_attempt, j.state, j.same, j.remaining_ms,
           j.status,
           case when j.stale is not true and j.not_held is not true and j.same is not false
                then j.headers end,
           case when j.stale is not true and j.not_held is not true and j.same is not false
                then j.body end,
           j.settled_by, j.evidence_status, j.o_key,
           case when j.o_key is not null then j.o_state end, j.o_remaining_ms,
           j.c_unknown, j.age_ms, j.c_upstream_key, j.account_same
      from judged j
     where (select count(*) from refused) >= 0; -- has it run: nothing else reads it
end
$$;

-- End leases as before (see 0011 for its guard), with equal refusals sharing a row: those of one lease,
-- whatever the results were that came too late. The shared row names the first of them.
create or replace function gateway.end_leases(
    p_tenant int, p_principal text, p_entity text[], p_job uuid[], p_fence bigint[], p_how text[],
    p_digest bytea[], p_result bytea[], p_error text[], p_delay_ms bigint[], p_retry boolean[], p_stage text[],
    p_stage_entity text[], p_wait boolean[]
) returns table (ord bigint, answer text, state text)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now  timestamptz;
    v_done bigint[];
begin
    perform 1 from gateway.entities e
      where e.tenant = p_tenant and e.entity = any (p_entity)
      order by e.entity
        for no key update;
    perform 1
       from gateway.job_leases l
      where l.tenant = p_tenant and l.entity = any (p_entity) and l.job = any (p_job)
      order by l.entity
        for update;
    perform 1 from gateway.jobs j
      where j.tenant = p_tenant and j.id = any (p_job)
      order by j.id
        for update;
    v_now := gateway.clock();

    select coalesce(array_agg(i.ord), '{}') into v_done
      from unnest(p_entity, p_job, p_fence) with ordinality as i (entity, job, fence, ord)
     cross join lateral (
        select l.job, l.fence, l.lease_until from gateway.job_leases l
         where l.tenant = p_tenant and l.entity = i.entity
        offset 0) as l
     where l.job = i.job and l.fence = i.fence and l.lease_until > v_now;
    perform gateway.close_leases(
               p_tenant, v_now, array_agg(i.entity), array_agg(i.job), array_agg(i.fence),
               array_agg(i.how), array_agg(i.digest), array_agg(i.result), array_agg(i.error), array_agg(i.delay_ms),
               array_agg(i.retry), array_agg(i.stage), array_agg(i.stage_entity), array_agg(i.wait))
       from unnest(
            p_entity, p_job, p_fence, p_how, p_digest, p_result, p_error, p_delay_ms, p_retry, p_stage,
            p_stage_entity, p_wait
       ) with ordinality as i (
            entity, job, fence, how, digest, result, error, delay_ms, retry, stage, stage_entity, wait, ord)
      where i.ord = any (v_done)
     having count(*) > 0;

    return query
    with judged as materialized (
        select i.*, r.state as run_state,
               case when i.ord = any (v_done) then 'done'
                    when r.digest = i.digest and r.how = i.how then 'again'
                    when r.how = 'cancelled' then 'cancelled'
                    when l.fence > i.fence then 'taken'
                    when r.how in ('completed', 'failed', 'handed-back') then 'ended'
                    else 'expired' end as answer,
               coalesce(j.key, h.key) as key, coalesce(r.ended_at, l.lease_until) as ended_at
          from unnest(p_entity, p_job, p_fence, p_how, p_digest, p_result, p_error)
               with ordinality as i (entity, job, fence, how, digest, result, error, ord)
          left join lateral (
            select r.* from gateway.job_runs r
             where r.tenant = p_tenant and r.job = i.job and r.entity = i.entity
               and r.fence = i.fence
            offset 0) as r on true
          left join lateral (
            select j.key from gateway.jobs j where j.tenant = p_tenant and j.id = i.job
            offset 0) as j on i.ord <> all (v_done)
          left join lateral (
            select h.key from gateway.job_history h where h.tenant = p_tenant and h.id = i.job
            offset 0) as h on i.ord <> all (v_done)
          left join lateral (
            select l.fence, l.lease_until from gateway.job_leases l
             where l.tenant = p_tenant and l.entity = i.entity
            offset 0) as l on i.ord <> all (v_done)
    ), rejected as materialized (
        select gateway.refuse(
                   p_tenant,
                   gateway.lease_audit_id(o.entity, o.job, o.fence, o.digest, 'result_rejected'),
                   v_now, 'result_rejected', p_principal, null, o.entity, o.key, o.fence, o.mark,
                   null, o.job::text, null, null,
                   format('%s with %s bytes, SHA-256 %s, %s: the lease was over (%s)', o.how,
                          octet_length(coalesce(o.result, convert_to(o.error, 'UTF8'))),
                          encode(sha256(coalesce(o.result, convert_to(o.error, 'UTF8'))), 'hex'),
                          coalesce(floor(extract(epoch from greatest(v_now, o.ended_at) - o.ended_at) * 1000) || ' ms late',
                                   'after no lease that is on record'), o.answer),
                   false)
          from (
            select o.*, e.fence as mark
              from judged o
              left join lateral (
                select e.fence from gateway.entities e
                 where e.tenant = p_tenant and e.entity = o.entity
                offset 0) as e on true
             where o.answer not in ('done', 'again') and o.how <> 'handed-back'
               and (o.key is not null or exists (
                    select from gateway.job_runs r where r.tenant = p_tenant and r.job = o.job))
             order by o.entity, o.key, o.fence
          ) o
    )
    select o.ord, o.answer, case when o.answer in ('done', 'again') then o.run_state end
      from judged o
     where (select count(*) from rejected) >= 0; -- has it run: nothing else reads it
end
$$;
