-- name: missing_commands
-- guard: none, it only reads, by primary key. What an operator resolved, or an attempt gave back, is
-- not missing; nor is the row of an attempt that another one took over. Such a row may be gone since
-- the one that took over was found not executed: then the audit names that one, and the key. Two hours
-- are longer than anybody remembers an attempt.
-- $1 tenants, $2 key digests, $3 attempts, $4 entities, $5 whether it was settled, $6 keys, $7 whether
-- another attempt may take it over.
-- "limit 1" keeps each look-up one of its own: see `ready`.
select i.ord
  from unnest($1::int[], $2::bytea[], $3::uuid[], $4::text[], $5::boolean[], $6::text[], $7::boolean[])
       with ordinality as i (tenant, key_digest, attempt, entity, settled, key, resent, ord)
  left join lateral (
    select c.attempt = i.attempt or coalesce(i.attempt = any (c.earlier), false) as own, c.settled_at
      from gateway.commands c
     where c.tenant = i.tenant and c.key_digest = i.key_digest
     limit 1
  ) c on true
 where (c.own is not true or (i.settled and c.settled_at is null))
   and not exists (
       select from gateway.audit a
        where a.tenant = i.tenant and a.entity = i.entity and a.attempt = i.attempt
          and a.event in ('released', 'resolved'))
   and not (i.resent and exists (
       select from gateway.audit a
        where a.tenant = i.tenant and a.entity = i.entity and a.key = i.key
          and a.event = 'resolved' and a.at > gateway.clock() - interval '2 hours'));

-- name: missing_marks
-- guard: none, it only reads, by primary key.
-- $1 tenants, $2 entities, $3 marks.
select i.ord
  from unnest($1::int[], $2::text[], $3::bigint[]) with ordinality as i (tenant, entity, fence, ord)
  left join lateral (
    select e.fence
      from gateway.entities e
     where e.tenant = i.tenant and e.entity = i.entity
     limit 1
  ) e on true
 where e.fence is null or e.fence < i.fence;

-- name: report
-- guard: a mark only rises; a command only where its key is free; a settlement only of its attempt.
select loss, restored
  from gateway.report_loss($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
                           $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28)
 order by ord;

-- name: open
-- guard: none, it only reads: losses that nobody acknowledged, and one that is asked for, $1.
select l.id, l.found_at, l.acknowledged_at is not null as acknowledged,
       count(*) filter (where r.what = 'command') as commands,
       count(*) filter (where r.what = 'settlement') as settlements,
       count(*) filter (where r.what = 'mark') as marks
  from gateway.losses l
  left join gateway.lost_rows r on r.loss = l.id
 where l.acknowledged_at is null or l.id = $1::uuid
 group by l.id
 order by l.found_at, l.id;

-- name: list
-- guard: none, it only reads: of a loss whose rows were lost in turn, that it is one; of a tenant
-- whose own row was lost, its number. $1 whether acknowledged ones count too, $2 rows.
select l.id as loss, l.found_at, l.server_before, l.server_after, l.acknowledged_at,
       l.acknowledged_by, l.reason,
       coalesce(t.name, 'tenant ' || r.tenant || ' (lost)') as tenant_name,
       r.what, r.entity, nullif(r.key, '') as key, r.policy, r.fence, r.attempt, r.status, r.restored
  from gateway.losses l
  left join gateway.lost_rows r on r.loss = l.id
  left join gateway.tenants t on t.tenant = r.tenant
 where $1::boolean or l.acknowledged_at is null
 order by l.found_at desc, l.id, t.name, r.entity, r.what, r.key
 limit $2::bigint;

-- name: acknowledge
-- guard: not acknowledged before.
select gateway.acknowledge_losses($1, $2) as losses;
