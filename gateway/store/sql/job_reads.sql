-- name: unfinished
-- guard: none, it only reads: one page behind a known place, the latest first.
-- $1 tenants, $2 stored states, $3 tool, $4 session, $5 entity, each null for any; $6, $7, $8 making,
-- tenant and id of the last row seen, null for the first page; $9 rows. Documents are left out: a page
-- of them would be megabytes.
select j.tenant, t.name as tenant_name, j.state as place, j.id, j.key, j.tool, j.entity, j.stage,
       j.stage_no, j.session, j.on_behalf, j.model, j.provider, j.priority, j.attempts, j.created_at,
       j.run_at, j.give_up_at, null::timestamptz as finished_at, l.owner, l.fence,
       floor(extract(epoch from l.lease_until - n.now) * 1000)::bigint as remaining_ms,
       floor(extract(epoch from n.now - l.beat_at) * 1000)::bigint as beat_ms,
       j.last_error as error
  from (select gateway.clock() as now offset 0) n
 cross join gateway.jobs j
  join gateway.tenants t on t.tenant = j.tenant
  left join lateral (
    select l.owner, l.fence, l.lease_until, l.beat_at from gateway.job_leases l
     where l.tenant = j.tenant and l.entity = j.entity and l.job = j.id
    offset 0) as l on true
 where ($1::int[] is null or j.tenant = any ($1))
   and ($2::text[] is null or j.state = any ($2))
   and ($3::text is null or j.tool = $3)
   and ($4::text is null or j.session = $4)
   and ($5::text is null or j.entity = $5)
   and ($6::timestamptz is null
        or (j.created_at <= $6 and (j.created_at, j.tenant, j.id) < ($6, $7::int, $8::uuid)))
 order by j.created_at desc, j.tenant desc, j.id desc
 limit $9::bigint;

-- name: finished
-- guard: none, it only reads: as unfinished, by the time of the end.
select h.tenant, t.name as tenant_name, h.state as place, h.id, h.key, h.tool, h.entity, h.stage,
       h.stage_no, h.session, h.on_behalf, h.model, h.provider, h.priority, h.attempts, h.created_at,
       null::timestamptz as run_at, null::timestamptz as give_up_at, h.finished_at,
       null::text as owner, null::bigint as fence, null::bigint as remaining_ms,
       null::bigint as beat_ms, h.error
  from gateway.job_history h
  join gateway.tenants t on t.tenant = h.tenant
 where ($1::int[] is null or h.tenant = any ($1))
   and ($2::text[] is null or h.state = any ($2))
   and ($3::text is null or h.tool = $3)
   and ($4::text is null or h.session = $4)
   and ($5::text is null or h.entity = $5)
   and ($6::timestamptz is null
        or (h.finished_at <= $6 and (h.finished_at, h.tenant, h.id) < ($6, $7::int, $8::uuid)))
 order by h.finished_at desc, h.tenant desc, h.id desc
 limit $9::bigint;

-- name: of_key
-- guard: none, it only reads, by primary key. The id of a forgotten job may be another's now.
select k.job
  from gateway.job_keys k
 where k.tenant = $1 and k.key = $2
   and (exists (select from gateway.jobs j
                 where j.tenant = k.tenant and j.id = k.job and j.key = k.key)
        or exists (select from gateway.job_history h
                    where h.tenant = k.tenant and h.id = k.job and h.key = k.key));

-- name: runs
-- guard: none, it only reads, by primary key: the leases of one job that ended, in order.
select r.stage, r.stage_no, r.entity, r.fence, r.owner, r.granted_at, r.ended_at, r.how, r.state,
       r.result, r.error
  from gateway.job_runs r
 where r.tenant = $1 and r.job = $2
 order by r.granted_at, r.ended_at;

-- name: place
-- guard: none, it only reads, by primary key: where a queued job stands, and who holds its entity.
select j.state as place, l.job as holder, l.owner
  from gateway.jobs j
  left join gateway.job_leases l on l.tenant = j.tenant and l.entity = j.entity
 where j.tenant = $1 and j.id = $2;

-- name: open
-- guard: none, it only reads, by primary key: the unsettled commands that hold these entities open.
-- $1 tenant, $2 entities.
select c.key, c.policy, c.entity, c.attempt, c.deadline <= n.now as is_unknown,
       ceil(extract(epoch from c.deadline - n.now))::bigint as remaining_s
  from (select gateway.clock() as now offset 0) n
 cross join (select distinct i.entity from unnest($2::text[]) as i (entity)) as i
 cross join lateral (
    select e.open_key from gateway.entities e
     where e.tenant = $1 and e.entity = i.entity
    offset 0) as e
 cross join lateral (
    select c.* from gateway.commands c
     where c.tenant = $1 and c.key_digest = e.open_key and c.settled_at is null
    offset 0) as c
 order by c.entity;

-- name: trail
-- guard: none, it only reads: what the audit says of one job, and of the fences that it was given; the
-- latest rows.
-- $1 tenant, $2 job, $3 its entities and $4 its fences, $5 when it was made, $6 rows.
select t.name as tenant_name, a.*, coalesce(r.times, 1) as times, coalesce(r.last_at, a.at) as last_at
  from gateway.audit a
  join gateway.tenants t on t.tenant = a.tenant
  left join lateral (
    select r.times, r.last_at
      from gateway.audit_repeats r
     where r.tenant = a.tenant and r.id = a.id
     limit 1
  ) r on true
 where a.tenant = $1 and a.entity = any ($3::text[]) and a.at >= $5
   and (a.job = ($2::uuid)::text
        or exists (select from unnest($3::text[], $4::bigint[]) as f (entity, fence)
                    where f.entity = a.entity and f.fence = a.fence))
 order by a.at desc, a.id desc
 limit $6::bigint;

-- name: holders
-- guard: none, it only reads, by primary key: some of the tenants that have a job of that id, or key.
select t.name
  from gateway.tenants t
 where exists (select from gateway.jobs j where j.tenant = t.tenant and j.id = $1)
    or exists (select from gateway.job_history h where h.tenant = t.tenant and h.id = $1)
    or exists (
        select from gateway.job_keys k
         where k.tenant = t.tenant and k.key = $2
           and (exists (select from gateway.jobs j
                         where j.tenant = k.tenant and j.id = k.job and j.key = k.key)
                or exists (select from gateway.job_history h
                            where h.tenant = k.tenant and h.id = k.job and h.key = k.key)))
 order by t.name
 limit $3::bigint;

-- name: now
-- guard: none, it only reads: "in 15 minutes" is counted on the database's clock.
select gateway.clock();
