-- name: list
-- guard: none, it only reads. The state is derived at one reading of the clock.
-- $1 tenants, $2 state, $3 entity, $4 key digests (of one key, under each tenant's salt), $5 policy,
-- each null for any; $6, $7, $8 admission, tenant and digest of the last row seen, null for the
-- first page; $9 rows; $10 what the key begins with, $11 since when it was admitted, each null for
-- any: keys are digests in the index, so a job's are found among what is younger than the job.
-- Recorded responses are left out: a page of them would be megabytes.
select *
  from (
    select t.name as tenant_name, c.tenant, c.key_digest, c.key, c.policy, c.entity, c.fence,
           c.attempt, c.attempts, c.principal, c.request_id, c.admitted_at, c.deadline,
           c.settled_at, c.settled_by, c.status, c.evidence_status, c.settle_delay_s,
           case when c.settled_at is not null then 'settled'
                when c.deadline <= n.now then 'unknown'
                else 'in-flight' end as state,
           (extract(epoch from n.now - c.admitted_at) * 1000)::bigint as age_ms,
           (extract(epoch from c.deadline - n.now) * 1000)::bigint as remaining_ms
      from (select gateway.clock() as now offset 0) n
     cross join gateway.commands c
      join gateway.tenants t on t.tenant = c.tenant
     where ($1::int[] is null or c.tenant = any ($1))
       and ($3::text is null or c.entity = $3)
       and ($4::bytea[] is null or c.key_digest = any ($4))
       and ($5::text is null or c.policy = $5)
       and ($10::text is null or starts_with(c.key, $10))
       and ($11::timestamptz is null or c.admitted_at >= $11)
       and ($6::timestamptz is null
            or (c.admitted_at <= $6
                and (c.admitted_at, c.tenant, c.key_digest) < ($6, $7::int, $8::bytea)))
  ) c
 where $2::text is null or c.state = $2
 order by c.admitted_at desc, c.tenant desc, c.key_digest desc
 limit $9::bigint;

-- name: job_made
-- guard: none, it only reads, by primary key: when the first job of that id was made, by tenant.
-- $1 tenants, null for any; $2 job.
select min(m.created_at)
  from gateway.tenants t
 cross join lateral (
    select j.created_at from gateway.jobs j where j.tenant = t.tenant and j.id = $2
    union all
    select h.created_at from gateway.job_history h where h.tenant = t.tenant and h.id = $2
 ) m
 where $1::int[] is null or t.tenant = any ($1);

-- name: show
-- guard: none, it only reads.
-- $1 tenant, $2, $3: lowest and highest key digest (equal for one key, apart for a prefix), $4 rows.
select c.*,
       case when c.settled_at is not null then 'settled'
            when c.deadline <= n.now then 'unknown'
            else 'in-flight' end as state,
       (extract(epoch from n.now - c.admitted_at) * 1000)::bigint as age_ms,
       (extract(epoch from c.deadline - n.now) * 1000)::bigint as remaining_ms,
       e.fence as mark, e.open_key = c.key_digest as is_open,
       w.tries as looks, w.asked_at as last_look_at, w.said as last_look, w.due_at as next_look_at,
       case when isfinite(w.due_at) then extract(epoch from w.due_at - n.now)::int end as next_look_s,
       coalesce(w.busy_until > n.now, false) as asking,
       f.at as first_sent_at, extract(epoch from n.now - f.at)::int as first_sent_ago_s,
       cardinality(c.earlier) as attempts_before
  from (select gateway.clock() as now offset 0) n
 cross join gateway.commands c
 cross join lateral (select gateway.first_sent(c.tenant, c.key_digest, c.admitted_at) as at) f
  left join gateway.entities e on e.tenant = c.tenant and e.entity = c.entity
  left join gateway.watched w
    on w.tenant = c.tenant and w.key_digest = c.key_digest and w.attempt = c.attempt
       and c.settled_at is null
 where c.tenant = $1 and c.key_digest between $2 and $3
 order by c.key_digest
 limit $4::bigint;

-- name: outline
-- guard: none, it only reads, by primary key; of the attempt that was looked at, and of no other.
-- $1 tenant, $2 key digest, $3 attempt.
select c.outline
  from gateway.commands c
 where c.tenant = $1 and c.key_digest = $2 and c.attempt = $3;

-- name: holders
-- guard: none, it only reads, by primary key.
-- $1 tenants, $2 the key's digest under the salt of each, $3 rows.
select t.name
  from unnest($1::int[], $2::bytea[]) k (tenant, key_digest)
  join gateway.commands c on c.tenant = k.tenant and c.key_digest = k.key_digest
  join gateway.tenants t on t.tenant = k.tenant
 order by t.name
 limit $3::bigint;

-- name: settled_of
-- guard: none, it only reads: settled commands of one entity that keep something of their answer.
-- $1 tenant, $2 entity, $3 digest of the last one seen ('' for the first), $4 rows.
select c.key_digest, c.key
  from gateway.commands c
 where c.tenant = $1 and c.entity = $2 and c.settled_at is not null
   and num_nonnulls(c.headers, c.body, c.evidence, c.probe_target) > 0
   and c.key_digest > $3
 order by c.key_digest
 limit $4::bigint;

-- name: count_of
-- guard: none, it only reads: commands of one entity; unsettled ones; of those, with evidence.
-- $1 tenant, $2 entity.
select count(*) as commands, count(*) filter (where c.settled_at is null) as unsettled,
       count(*) filter (where c.settled_at is null and c.evidence is not null) as evidence
  from gateway.commands c
 where c.tenant = $1 and c.entity = $2;

-- name: erase
-- guard: settled.
-- $1 tenant, $2 key digest, $3 reason, $4 who has it erased.
select gateway.erase($1, $2, $3, $4) as result;

-- name: resolve
-- guard: the attempt that was judged, not settled, past its deadline (see migrations/0003).
-- $1 tenant, $2 key digest, $3 attempt, $4 executed, $5 reason, $6 who decides.
select result, remaining_s from gateway.resolve($1, $2, $3, $4, $5, $6);
