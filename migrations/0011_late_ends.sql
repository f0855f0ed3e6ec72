-- What the audit says of leases that are over. Both functions keep their signatures, so that the release
-- before runs beside them.

-- Close leases as before (see 0007 for its guard). New: where the clock has stepped back during a lease
-- the audit does not say that it was granted in the future.
create or replace function gateway.close_leases(
    p_tenant int, p_now timestamptz, p_entity text[], p_job uuid[], p_fence bigint[], p_how text[],
    p_digest bytea[], p_result bytea[], p_error text[], p_delay_ms bigint[], p_retry boolean[], p_stage text[],
    p_stage_entity text[], p_wait boolean[]
) returns table (job uuid, state text)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_jobs      uuid[];
    v_states    text[];
    v_fences    bigint[];
    v_expired   boolean[];
    v_entity    text[];
    v_tool      text[];
    v_on_behalf text[];
begin
    with input as (
        select * from unnest(
            p_entity, p_job, p_fence, p_how, p_digest, p_result, p_error, p_delay_ms, p_retry, p_stage,
            p_stage_entity, p_wait
        ) as i (
            entity, job, fence, how, digest, result, error, delay_ms, retry, stage, stage_entity, wait)
    ), ended as (
        delete from gateway.job_leases l
         using input i
         where l.tenant = p_tenant and l.entity = any (p_entity) and l.entity = i.entity and l.job = i.job and l.fence = i.fence
        returning l.entity, l.job, l.fence, l.owner, l.granted_at, l.lease_until
    ), next as materialized (
        select j.*, e.fence, e.owner, e.granted_at, e.lease_until, i.how, i.digest, i.result, i.error,
               i.stage as next_stage, i.stage_entity,
               p_now + i.delay_ms * interval '1 millisecond' as next_run_at, i.delay_ms,
               case when i.how = 'completed' and i.stage is null then 'succeeded'
                    when i.how = 'completed' and i.wait then 'waiting'
                    when i.how = 'completed' then 'ready'
                    when i.how = 'cancelled' then 'cancelled'
                    when i.how <> 'handed-back' and (
                         j.attempts >= j.max_attempts or j.give_up_at <= p_now
                         or (i.how = 'failed' and i.retry is not true)) then 'failed'
                    when i.delay_ms > 0 then 'scheduled'
                    else 'ready' end as next_state
          from ended e
          join input i on i.job = e.job
         cross join lateral (
            select j.* from gateway.jobs j where j.tenant = p_tenant and j.id = e.job
            offset 0) as j
    ), runs as (
        insert into gateway.job_runs (
            tenant, job, fence, stage, stage_no, entity, owner, granted_at, ended_at, how, state,
            digest, result, error)
        select p_tenant, n.id, n.fence, n.stage, n.stage_no, n.entity, n.owner, n.granted_at,
               -- A lease that ran out ended then, whenever that is recorded.
               case when n.how = 'expired' then least(n.lease_until, p_now) else p_now end, n.how,
               n.next_state, n.digest, case when n.next_state <> 'succeeded' then n.result end, n.error
          from next n
    ), finished as (
        insert into gateway.job_history (
            tenant, id, key, tool, session, on_behalf, model, provider, stage, stage_no, entity,
            payload, previous, priority, created_at, attempts, finished_at, state, result, error)
        select n.tenant, n.id, n.key, n.tool, n.session, n.on_behalf, n.model, n.provider, n.stage,
               n.stage_no, n.entity, n.payload, n.previous, n.priority, n.created_at, n.attempts,
               p_now, n.next_state, n.result, n.error
          from next n
         where n.next_state in ('succeeded', 'failed', 'cancelled')
    ), gone as (
        delete from gateway.jobs j
         where j.tenant = p_tenant and j.id = any (array(
               select n.id from next n
                where n.next_state in ('succeeded', 'failed', 'cancelled')))
    ), kept as (
        update gateway.jobs j
           set state = n.next_state,
               run_at = case when n.how = 'completed' then p_now
                             when n.delay_ms > 0 then n.next_run_at else j.run_at end,
               attempts = case when n.how = 'completed' then 0
                               when n.how = 'handed-back' then j.attempts - 1
                               else j.attempts end,
               last_error = case when n.how = 'completed' then null
                                 else coalesce(n.error, j.last_error) end,
               stage = coalesce(n.next_stage, j.stage),
               stage_no = case when n.how = 'completed' then j.stage_no + 1 else j.stage_no end,
               entity = case when n.how = 'completed' then coalesce(n.stage_entity, 'job:' || j.id)
                             else j.entity end,
               previous = case when n.how = 'completed' then n.result else j.previous end
          from next n
         where j.tenant = p_tenant and j.id = any (p_job) and j.id = n.id
           and n.next_state not in ('succeeded', 'failed', 'cancelled')
    )
    select array_agg(n.id), array_agg(n.next_state), array_agg(n.fence),
           array_agg(n.how = 'expired'), array_agg(n.entity), array_agg(n.tool), array_agg(n.on_behalf)
      into v_jobs, v_states, v_fences, v_expired, v_entity, v_tool, v_on_behalf
      from next n;

    perform gateway.unblock(p_tenant, v_entity, v_tool, v_on_behalf);

    -- Every end raises the counter: until the next lease nobody's fence is good.
    update gateway.entities e set fence = e.fence + 1, held = 0, touched_at = p_now
     where e.tenant = p_tenant and e.entity = any (v_entity);

    insert into gateway.audit (
        tenant, id, at, event, entity, key, fence, high_water_mark, job, reason)
    select p_tenant, gateway.lease_audit_id(i.entity, i.job, i.fence, null, 'lease_expired'), p_now,
           'lease_expired', i.entity, k.key, i.fence, e.fence, i.job::text,
           format('the lease of %s, granted %s ms before, ran out; fence %s is stale from mark %s on; the job is %s',
                  r.owner, floor(extract(epoch from greatest(r.ended_at, r.granted_at) - r.granted_at) * 1000), i.fence, e.fence,
                  case when i.state in ('ready', 'scheduled') then 'queued' else i.state end)
      from unnest(v_jobs, v_states, v_fences, v_expired, v_entity) as i (job, state, fence, expired, entity)
      join gateway.entities e
        on e.tenant = p_tenant and e.entity = any (v_entity) and e.entity = i.entity
      join gateway.job_runs r
        on r.tenant = p_tenant and r.job = any (v_jobs) and r.job = i.job and r.entity = i.entity and r.fence = i.fence
      left join lateral (
            select j.key from gateway.jobs j where j.tenant = p_tenant and j.id = i.job
            union all
            select h.key from gateway.job_history h where h.tenant = p_tenant and h.id = i.job
            limit 1) as k on true
     where i.expired
        on conflict (tenant, id) do nothing;

    return query select * from unnest(v_jobs, v_states);
end
$$;

-- End leases as before (see 0007 for its guard). New: a result that is refused leaves a row only where
-- the tenant has the job, or has a lease of it on record. Who makes ends up could fill the audit with
-- rows about nothing; a late result of a real job is recorded as ever.
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
    ), rejected as (
        insert into gateway.audit (
            tenant, id, at, event, principal, entity, key, fence, high_water_mark, job, reason)
        select p_tenant,
               gateway.lease_audit_id(o.entity, o.job, o.fence, o.digest, 'result_rejected'), v_now,
               'result_rejected', p_principal, o.entity, o.key, o.fence, e.fence, o.job::text,
               format('%s with %s bytes, SHA-256 %s, %s: the lease was over (%s)', o.how,
                      octet_length(coalesce(o.result, convert_to(o.error, 'UTF8'))),
                      encode(sha256(coalesce(o.result, convert_to(o.error, 'UTF8'))), 'hex'),
                      coalesce(floor(extract(epoch from greatest(v_now, o.ended_at) - o.ended_at) * 1000) || ' ms late',
                               'after no lease that is on record'), o.answer)
          from judged o
          left join lateral (
            select e.fence from gateway.entities e
             where e.tenant = p_tenant and e.entity = o.entity
            offset 0) as e on true
         where o.answer not in ('done', 'again') and o.how <> 'handed-back'
           and (o.key is not null or exists (
                select from gateway.job_runs r where r.tenant = p_tenant and r.job = o.job))
            on conflict (tenant, id) do nothing
    )
    select o.ord, o.answer, case when o.answer in ('done', 'again') then o.run_state end
      from judged o;
end
$$;
