-- name: left_behind
-- guard: none, it only reads. A row comes back where `default` holds no key and the tenant never
-- held one: then callers without a key would leave `default`.
-- $1 the tenant that is to get a key, $2 commands counted at most.
select (select count(*)
          from (select from gateway.commands c where c.tenant = d.tenant limit $2::bigint) counted
       ) as commands,
       exists (select from gateway.entities e where e.tenant = d.tenant) as entities
  from gateway.tenants d
 where d.name = 'default' and d.name <> $1::text
   and not exists (
       select from gateway.caller_keys k where k.tenant = d.tenant and k.revoked_at is null)
   and not exists (
       select from gateway.caller_keys k
         join gateway.tenants t on t.tenant = k.tenant
        where t.name = $1::text);

-- name: ensure_tenant
-- guard: a tenant of that name is left as it is.
-- $1 name. Asked first, because a conflict would use up a tenant number.
insert into gateway.tenants (name)
select $1::text
 where not exists (select from gateway.tenants where name = $1::text)
    on conflict (name) do nothing;

-- name: add_key
-- guard: the key id is new; no row comes back where it is taken or the tenant is missing.
-- $1 tenant name, $2 key id, $3 principal, $4 SHA-256 of the secret, $5 id of the audit row,
-- $6 who did it, $7 scopes.
with tenant as (
    select tenant from gateway.tenants where name = $1
), added as (
    insert into gateway.caller_keys (tenant, key_id, principal, secret_digest, scopes)
    select tenant, $2, $3, $4, $7::text[] from tenant
        on conflict (tenant, key_id) do nothing
    returning tenant, created_at
), told as (
    insert into gateway.audit (tenant, id, at, event, principal, reason)
    select tenant, $5, created_at, 'operator', $6,
           format('key %s added for %s: %s', $2::text, $3::text, array_to_string($7::text[], ' '))
      from added
)
select tenant from added;

-- name: revoke_key
-- guard: not revoked before; a key is revoked once and stays so.
-- $1 tenant name, $2 key id, $3 id of the audit row, $4 who did it.
with found as (
    select k.tenant, k.key_id, k.principal, k.revoked_at
      from gateway.tenants t
      join gateway.caller_keys k on k.tenant = t.tenant and k.key_id = $2
     where t.name = $1
), revoked as (
    update gateway.caller_keys k
       set revoked_at = gateway.clock()
      from found f
     where k.tenant = f.tenant and k.key_id = f.key_id and k.revoked_at is null
    returning k.tenant, k.key_id, k.principal, k.revoked_at
), told as (
    insert into gateway.audit (tenant, id, at, event, principal, reason)
    select tenant, $3, revoked_at, 'operator', $4, format('key %s of %s revoked', key_id, principal)
      from revoked
)
select f.principal, r.key_id is not null as now
  from found f
  left join revoked r on r.tenant = f.tenant and r.key_id = f.key_id;

-- name: change_scopes
-- guard: the scopes that were looked at, and not revoked.
-- $1 tenant, $2 key id, $3 scopes before (null: of a key that has none), $4 scopes from now on, $5 id of
-- the audit row, $6 who did it.
with changed as (
    update gateway.caller_keys k
       set scopes = $4::text[]
     where k.tenant = $1 and k.key_id = $2 and k.scopes is not distinct from $3::text[]
       and k.revoked_at is null
    returning k.tenant, k.key_id, k.principal
), told as (
    insert into gateway.audit (tenant, id, at, event, principal, reason)
    select tenant, $5, gateway.clock(), 'operator', $6,
           format('key %s of %s may from now on: %s', key_id, principal, array_to_string($4::text[], ' '))
      from changed
)
select key_id from changed;

-- name: list_keys
-- guard: none, it only reads; never the digest of a secret.
-- $1 tenant name or null for all.
select t.tenant, t.name as tenant_name, k.key_id, k.principal, k.created_at, k.revoked_at, k.scopes
  from gateway.tenants t
  join gateway.caller_keys k on k.tenant = t.tenant
 where $1::text is null or t.name = $1
 order by t.name, k.created_at, k.key_id;

-- name: list_tenants
-- guard: none, it only reads.
select tenant, name, salt from gateway.tenants order by tenant;

-- name: snapshot
-- guard: none, it only reads, in one statement: keys and "has any ever existed" are of one moment.
-- Revoked keys come along, because they count as having existed.
select t.tenant, t.name as tenant_name, t.salt, t.erasure_epoch, k.key_id, k.principal, k.secret_digest,
       k.revoked_at is not null as revoked, k.scopes
  from gateway.tenants t
  left join gateway.caller_keys k on k.tenant = t.tenant
 where k.key_id is not null or t.name = 'default';
