-- name: append
-- guard: append-only; a row that is there already (the same id, or the same attempt and event)
-- stays as it is, and equal ones share a row once there are many (see migrations/0019).
-- $1 tenant, $2 id for a row without attempt, $3 event, $4 principal, $5 policy, $6 entity, $7 key,
-- $8 fence, $9 high-water mark, $10 attempt, $11 job, $12 request id, $13 fingerprint, $14 reason.
select gateway.refuse(
    $1, coalesce(gateway.audit_id($10, $3), $2), gateway.clock(), $3, $4, $5, $6, $7, $8, $9, $10,
    $11, $12, $13, $14, true);

-- name: now
-- guard: none, it only reads: "15m ago" is counted on the database's clock.
select gateway.clock();

-- name: newest_first
-- guard: none, it only reads: one page behind a known place.
-- $1 tenant name, $2 event, $3 entity, $4 key, $5 since (inclusive), $6 until (exclusive), each null
-- for any; $7, $8, $9 time, tenant and id of the last row seen, null for the first page; $10 rows.
-- The inner query runs per tenant, so that each reads no further than the page in its own index.
select t.name as tenant_name, a.*, coalesce(r.times, 1) as times, coalesce(r.last_at, a.at) as last_at
  from gateway.tenants t
 cross join lateral (
    select *
      from gateway.audit a
     where a.tenant = t.tenant
       and ($2::text is null or a.event = $2)
       and ($3::text is null or a.entity = $3)
       and ($4::text is null or a.key = $4)
       and ($5::timestamptz is null or a.at >= $5)
       and ($6::timestamptz is null or a.at < $6)
       and ($7::timestamptz is null
            or (a.at <= $7 and (a.at, a.tenant, a.id) < ($7, $8::int, $9::uuid)))
     order by a.at desc, a.id desc
     limit $10::bigint
 ) a
  left join lateral (
    select r.times, r.last_at
      from gateway.audit_repeats r
     where r.tenant = a.tenant and r.id = a.id
     limit 1
 ) r on true
 where $1::text is null or t.name = $1
 order by a.at desc, a.tenant desc, a.id desc
 limit $10::bigint;

-- name: oldest_first
-- guard: none, it only reads: as newest_first, the other way round.
select t.name as tenant_name, a.*, coalesce(r.times, 1) as times, coalesce(r.last_at, a.at) as last_at
  from gateway.tenants t
 cross join lateral (
    select *
      from gateway.audit a
     where a.tenant = t.tenant
       and ($2::text is null or a.event = $2)
       and ($3::text is null or a.entity = $3)
       and ($4::text is null or a.key = $4)
       and ($5::timestamptz is null or a.at >= $5)
       and ($6::timestamptz is null or a.at < $6)
       and ($7::timestamptz is null
            or (a.at >= $7 and (a.at, a.tenant, a.id) > ($7, $8::int, $9::uuid)))
     order by a.at, a.id
     limit $10::bigint
 ) a
  left join lateral (
    select r.times, r.last_at
      from gateway.audit_repeats r
     where r.tenant = a.tenant and r.id = a.id
     limit 1
 ) r on true
 where $1::text is null or t.name = $1
 order by a.at, a.tenant, a.id
 limit $10::bigint;
