-- name: admit
-- guard: new key, fence not below the high-water mark and, where fences are issued here, the one now
-- held, entity not open (see migrations/0012), and no key that is older than the memory of keys (0016).
-- No row: fresh, admitted (see migrations/0020).
select ord, mark, held, known_attempt, known_state, known_same, known_remaining_ms, known_status,
       known_headers, known_body, known_settled_by, known_evidence_status, open_key, open_state,
       open_remaining_ms, known_unknown, known_age_ms, known_upstream_key, known_account_same,
       known_attempt is null and gateway.is_expired_key(($3::text[])[ord], ($19::int[])[ord]) as expired
  from gateway.admit_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
                           $18, $19, $20, $21, $22, $23);

-- name: settle
-- guard: the attempt's own uuid or one that took over from it, and not settled (see migrations/0013).
-- No row: settled (see migrations/0020).
select ord, result from gateway.settle_batch($1, $2, $3, $4, $5, $6, $7, $8);

-- name: settle_unmatched
-- guard: inserts only where the key is free.
select gateway.settle_unmatched($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
                                $16, $17, $18, $19, $20, $21);

-- name: release
-- guard: the attempt's own uuid, not settled, and taken over from none.
select released from gateway.release($1, $2, $3, $4, $5, $6) order by ord;

-- name: hold
-- guard: the attempt's own uuid, not settled, and not held before.
select held from gateway.hold($1, $2, $3, $4, $5, $6, $7) order by ord;

-- name: ready
-- guard: none, it only reads: which waiters it is worth waking. A read never decides.
-- $1, $2: tenants and key digests of waited-for keys; $3, $4: tenants and entities.
-- "limit 1" keeps each look-up one of its own by primary key: as plain joins, the planner would read
-- all of a table that has no statistics yet, ten times a second.
select 'key' as kind, i.ord
  from unnest($1::int[], $2::bytea[]) with ordinality as i (tenant, key_digest, ord)
  left join lateral (
    select c.settled_at, c.deadline
      from gateway.commands c
     where c.tenant = i.tenant and c.key_digest = i.key_digest
     limit 1
  ) c on true
 where c.deadline is null or c.settled_at is not null or c.deadline <= gateway.clock()
union all
select 'entity', i.ord
  from unnest($3::int[], $4::text[]) with ordinality as i (tenant, entity, ord)
  left join lateral (
    select e.open_until
      from gateway.entities e
     where e.tenant = i.tenant and e.entity = i.entity
     limit 1
  ) e on true
 where e.open_until is null or e.open_until <= gateway.clock();

-- name: deployment
-- guard: none, it only reads.
select id from gateway.deployment;

-- name: open_parallel
-- guard: none, it only reads: unsettled commands that were admitted without taking the open slot,
-- of policies that are serial now. Read once, at start.
select t.name as tenant, c.policy, c.key, c.entity
  from gateway.commands c
  join gateway.tenants t on t.tenant = c.tenant
 where c.settled_at is null and not c.serial and c.policy = any ($1::text[])
 order by c.admitted_at
 limit 20;
