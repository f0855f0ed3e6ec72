-- name: enqueue
-- guard: new key (see migrations/0015).
select job, same, state, result, error
  from gateway.enqueue_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) order by ord;

-- name: claim
-- guard: ready, not past give_up_at, below its attempts; entity without a lease; within the limits.
select job, entity, fence, remaining_ms, total_remaining_ms, attempt, max_attempts, key, tool,
       session, on_behalf, model, provider, stage, stage_no, payload, previous, last_error,
       give_up_ms
  from gateway.claim_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: renew
-- guard: the lease of (entity, job, fence), not over.
select remaining_ms, total_remaining_ms, lost
  from gateway.renew_leases($1, $2, $3, $4) order by ord;

-- name: end
-- guard: the lease of (entity, job, fence), not over.
select answer, state
  from gateway.end_leases($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
                          $14) order by ord;

-- name: expired
-- guard: none, it changes nothing; what others have locked is passed over.
select e.tenant, e.entity, e.job, e.fence, e.tool, e.attempts, e.over_ms, j.model, j.provider
  from gateway.expired_leases($1) as e
  left join lateral (
    select j.model, j.provider from gateway.jobs j where j.tenant = e.tenant and j.id = e.job
    offset 0) as j on true;

-- name: reap
-- guard: the lease of (entity, job, fence), over.
select job, fence, state from gateway.reap_leases($1, $2, $3, $4, $5);

-- name: give_up
-- guard: past give_up_at and without a lease.
select tenant, job from gateway.give_up_overdue($1);

-- name: cancel
-- guard: unfinished.
select answer, state from gateway.cancel_job($1, $2, $3, $4);

-- name: approve
-- guard: waiting.
select gateway.approve_job($1, $2, $3, $4);

-- name: retry
-- guard: in the history, failed or cancelled.
select gateway.retry_job($1, $2, $3, $4);

-- name: of_session
-- guard: none, it only reads.
select id from gateway.jobs where tenant = $1 and session = $2 order by id;

-- name: leases
-- guard: none, it only reads; at most $1 leases, whichever come first. Leases are few and read whole;
-- jobs are looked up by key.
select l.tool, j.model, j.provider,
       count(*) filter (where l.lease_until > l.now) as live,
       extract(epoch from max(l.now - l.beat_at))::float8 as beat_s,
       extract(epoch from min(l.lease_until - l.now))::float8 as remaining_s
  from (select l.*, gateway.clock() as now from gateway.job_leases l limit $1) as l
  left join lateral (
    select j.model, j.provider from gateway.jobs j where j.tenant = l.tenant and j.id = l.job
    offset 0) as j on true
 group by l.tool, j.model, j.provider;

-- name: find
-- guard: none, it only reads.
select j.id, j.key, j.tool, j.state, j.entity, j.stage, j.stage_no, j.session, j.on_behalf, j.model,
       j.provider, j.priority, j.attempts, j.created_at, j.run_at, j.give_up_at,
       null::timestamptz as finished_at, l.owner, l.fence,
       floor(extract(epoch from l.lease_until - gateway.clock()) * 1000)::bigint as remaining_ms,
       floor(extract(epoch from gateway.clock() - l.beat_at) * 1000)::bigint as beat_ms,
       j.last_error as error, j.payload, j.previous as result
  from gateway.jobs j
  left join gateway.job_leases l on l.tenant = j.tenant and l.entity = j.entity and l.job = j.id
 where j.tenant = $1 and j.id = $2
union all
select h.id, h.key, h.tool, h.state, h.entity, h.stage, h.stage_no, h.session, h.on_behalf, h.model,
       h.provider, h.priority, h.attempts, h.created_at, null, null, h.finished_at, null, null, null,
       null, h.error, h.payload, h.result
  from gateway.job_history h
 where h.tenant = $1 and h.id = $2;
