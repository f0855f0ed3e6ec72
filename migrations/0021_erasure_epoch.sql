-- Gateways may replay settled responses from a cache for a while. What is erased must not be replayed
-- from one, so each tenant has an epoch: every erasure in it begins another, gateways read it with the
-- keys, and nothing that was cached in one epoch is looked for in the next. Random, not counted: a
-- database that was restored to an earlier time must not come to an epoch again that caches know.
-- Not with its default at once: that would write the table anew, and from the size it then notes the
-- planner takes other plans for whoever joins it.
alter table gateway.tenants add column erasure_epoch uuid;
update gateway.tenants set erasure_epoch = gen_random_uuid();
alter table gateway.tenants
    alter column erasure_epoch set default gen_random_uuid(),
    alter column erasure_epoch set not null;

-- As before (see 0015), and begins an epoch. The release before calls the same function.
create or replace function gateway.erase(
    p_tenant int, p_key_digest bytea, p_reason text, p_principal text
) returns text
language plpgsql
as $$
declare
    v_row gateway.commands;
begin
    select * into v_row from gateway.commands c
     where c.tenant = p_tenant and c.key_digest = p_key_digest
       for no key update;
    if v_row.attempt is null then
        return 'missing';
    elsif v_row.settled_at is null then
        return 'unsettled';
    elsif num_nonnulls(v_row.headers, v_row.body, v_row.evidence, v_row.probe_target) = 0 then
        return 'already';
    end if;
    update gateway.commands c set headers = null, body = null, evidence = null, probe_target = null
     where c.tenant = p_tenant and c.key_digest = p_key_digest;
    update gateway.tenants t set erasure_epoch = gen_random_uuid() where t.tenant = p_tenant;
    insert into gateway.audit (
        tenant, id, at, event, principal, policy, entity, key, fence, attempt, request_id,
        fingerprint, reason)
    values (
        p_tenant, gen_random_uuid(), gateway.clock(), 'operator', p_principal, v_row.policy,
        v_row.entity, v_row.key, v_row.fence, v_row.attempt, v_row.request_id, v_row.fingerprint,
        'response erased: ' || p_reason);
    return 'erased';
end
$$;
