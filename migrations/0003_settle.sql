-- Settle, release and hold: the three ends of an attempt. Every one is guarded by the attempt's own
-- uuid and by "not settled", and clears or moves the entity's open slot in the same statement, by
-- match. Locks: entities first, then commands, each in sorted order.

-- Record final responses. p_body null = not kept.
-- Returns per command: settled (in time) | late (after its deadline or after it was called unknown)
-- | unmatched (no unsettled row of this attempt: ask gateway.settle_unmatched).
create function gateway.settle(
    p_tenant int[], p_key_digest bytea[], p_entity text[], p_attempt uuid[],
    p_status int[], p_headers bytea[], p_body bytea[]
) returns table (ord bigint, result text)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
begin
    perform gateway.lock_open(p_tenant, p_entity, p_attempt);
    v_now := gateway.clock();

    return query
    with input as (
        select * from unnest(
            p_tenant, p_key_digest, p_attempt, p_status, p_headers, p_body
        ) with ordinality as i (tenant, key_digest, attempt, status, headers, body, ord)
        order by tenant, key_digest
    ), done as (
        update gateway.commands c
           set settled_at = v_now,
               settled_by = case when c.evidence_at is null and c.deadline > v_now
                                 then 'answer' else 'late' end,
               status = i.status, headers = i.headers, body = i.body,
               expires_at = v_now + make_interval(days => c.key_days)
          from input i
         where c.tenant = i.tenant and c.key_digest = i.key_digest
           and c.attempt = i.attempt and c.settled_at is null
        returning i.ord, c.tenant, c.key_digest, c.entity, c.attempt, c.settled_by, c.principal,
                  c.policy, c.key, c.fence, c.request_id, c.fingerprint, c.status
    ), freed as (
        update gateway.entities e
           set open_key = null, open_attempt = null, open_until = null, touched_at = v_now
          from done d
         where e.tenant = d.tenant and e.entity = d.entity and e.open_attempt = d.attempt
    ), late as (
        insert into gateway.audit (
            tenant, id, at, event, principal, policy, entity, key, fence, attempt, request_id,
            fingerprint, reason)
        select d.tenant, gateway.audit_id(d.attempt, 'late_evidence'), v_now, 'late_evidence',
               d.principal, d.policy, d.entity, d.key, d.fence, d.attempt, d.request_id,
               d.fingerprint, format('settled late by the response %s of its own attempt', d.status)
          from done d
         where d.settled_by = 'late'
            on conflict (tenant, id) do nothing
    )
    select i.ord,
           case d.settled_by when 'answer' then 'settled' when 'late' then 'late'
                             else 'unmatched' end
      from input i
      left join done d on d.ord = i.ord;
end
$$;

-- Lock the entities whose open slot these attempts hold, in sorted order.
create function gateway.lock_open(p_tenant int[], p_entity text[], p_attempt uuid[]) returns void
language plpgsql
as $$
begin
    perform 1
       from gateway.entities e
       join unnest(p_tenant, p_entity, p_attempt) as i (tenant, entity, attempt)
         on e.tenant = i.tenant and e.entity = i.entity
      where e.open_attempt = i.attempt
      order by e.tenant, e.entity
        for no key update of e;
end
$$;

-- A response whose attempt has no unsettled row (rare): where the key is free it is recorded as
-- settled; where another holds the key, the evidence goes to the audit.
-- Returns: contradicts (recorded now, though the key had been given back) | already (recorded by an earlier try of the same settle)
-- | resolved (a person settled it as executed) | duplicate (a newer attempt holds the key)
-- | retry (the row changed meanwhile: settle again).
create function gateway.settle_unmatched(
    p_tenant int, p_key_digest bytea, p_key text, p_policy text, p_entity text,
    p_fingerprint bytea, p_rules bytea, p_fence bigint, p_attempt uuid, p_principal text,
    p_request_id text, p_serial boolean, p_unknown text, p_upstream_key text,
    p_upstream_digest bytea, p_settle_delay_s int, p_response_days int, p_key_days int,
    p_status int, p_headers bytea, p_body bytea
) returns text
language plpgsql
as $$
declare
    v_now    timestamptz := gateway.clock();  -- again below: the insert may wait for another's commit
    v_row    gateway.commands;
    v_result text;
    v_reason text;
begin
    insert into gateway.commands (
        tenant, key_digest, key, policy, entity, fingerprint, rules, fence, attempt, principal,
        request_id, serial, unknown, upstream_key, upstream_digest, settle_delay_s, response_days,
        key_days, admitted_at, deadline, settled_at, settled_by, status, headers, body, expires_at)
    values (
        p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence,
        p_attempt, p_principal, p_request_id, p_serial, p_unknown, p_upstream_key,
        p_upstream_digest, p_settle_delay_s, p_response_days, p_key_days, v_now, v_now, v_now,
        'late', p_status, p_headers, p_body, v_now + make_interval(days => p_key_days))
    on conflict (tenant, key_digest) do nothing;
    if found then
        v_result := 'contradicts';
        v_reason := format('the key had been given back as not executed; its response %s is recorded', p_status);
    else
        select * into v_row from gateway.commands c
         where c.tenant = p_tenant and c.key_digest = p_key_digest;
        if not found or (v_row.attempt = p_attempt and v_row.settled_at is null) then
            return 'retry';
        elsif v_row.attempt <> p_attempt then
            v_result := 'duplicate';
            v_reason := format('response %s of an attempt whose key was given back; attempt %s holds it now',
                               p_status, v_row.attempt);
        elsif v_row.settled_by = 'resolved' then
            v_result := 'resolved';
            v_reason := format('response %s of a command that was resolved as executed', p_status);
        else
            return 'already';
        end if;
    end if;

    v_now := gateway.clock();
    insert into gateway.audit (
        tenant, id, at, event, principal, policy, entity, key, fence, attempt, request_id,
        fingerprint, reason)
    select p_tenant, gateway.audit_id(p_attempt, e.event), v_now, e.event, p_principal, p_policy,
           p_entity, p_key, p_fence, p_attempt, p_request_id, p_fingerprint, v_reason
      from (select case v_result when 'duplicate' then 'duplicate_effect_suspected'
                                 else 'late_evidence' end) as e (event)
        on conflict (tenant, id) do nothing;
    return v_result;
end
$$;

-- Give keys back, on proof that the upstream did not execute. p_reason says which proof. An attempt
-- that was held has no such proof, so it is never released.
-- The entity is locked whether or not its slot is the attempt's (p_entity null: the command has no
-- entity row): an admit whose answer was lost may still be committing, which statement_timeout does
-- not bound, and this waits for it. The insert waits where that admit also made the entity.
-- Returns per command whether a row of this attempt was there; a repeated release that finds none
-- is done.
create function gateway.release(
    p_tenant int[], p_key_digest bytea[], p_entity text[], p_attempt uuid[], p_reason text[]
) returns table (ord bigint, released boolean)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
begin
    insert into gateway.entities (tenant, entity, touched_at)
    select i.tenant, i.entity, gateway.clock()
      from unnest(p_tenant, p_entity) as i (tenant, entity)
     where i.entity is not null
     order by i.tenant, i.entity collate "C"
        on conflict (tenant, entity) do nothing;
    perform 1
       from gateway.entities e
       join unnest(p_tenant, p_entity) as i (tenant, entity)
         on e.tenant = i.tenant and e.entity = i.entity
      order by e.tenant, e.entity
        for no key update of e;
    v_now := gateway.clock();

    return query
    with input as (
        select * from unnest(p_tenant, p_key_digest, p_attempt, p_reason)
               with ordinality as i (tenant, key_digest, attempt, reason, ord)
        order by tenant, key_digest
    ), gone as (
        delete from gateway.commands c
         using input i
         where c.tenant = i.tenant and c.key_digest = i.key_digest
           and c.attempt = i.attempt and c.settled_at is null and c.evidence_at is null
        returning i.ord, i.reason, c.*
    ), freed as (
        update gateway.entities e
           set open_key = null, open_attempt = null, open_until = null, touched_at = v_now
          from gone g
         where e.tenant = g.tenant and e.entity = g.entity and e.open_attempt = g.attempt
    ), told as (
        insert into gateway.audit (
            tenant, id, at, event, principal, policy, entity, key, fence, attempt, request_id,
            fingerprint, reason)
        select g.tenant, gateway.audit_id(g.attempt, 'released'), v_now, 'released', g.principal,
               g.policy, g.entity, g.key, g.fence, g.attempt, g.request_id, g.fingerprint, g.reason
          from gone g
            on conflict (tenant, id) do nothing
    )
    select i.ord, g.ord is not null from input i left join gone g on g.ord = i.ord;
end
$$;

-- Record that an outcome is unknown: its deadline moves to the present, and the evidence is kept.
-- p_status, p_evidence null = nothing was heard. Repeating it changes nothing.
create function gateway.hold(
    p_tenant int[], p_key_digest bytea[], p_entity text[], p_attempt uuid[], p_reason text[],
    p_status int[], p_evidence bytea[]
) returns table (ord bigint, held boolean)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
begin
    perform gateway.lock_open(p_tenant, p_entity, p_attempt);
    v_now := gateway.clock();

    return query
    with input as (
        select * from unnest(p_tenant, p_key_digest, p_attempt, p_reason, p_status, p_evidence)
               with ordinality as i (tenant, key_digest, attempt, reason, status, evidence, ord)
        order by tenant, key_digest
    ), done as (
        update gateway.commands c
           set deadline = least(c.deadline, v_now), evidence_at = v_now,
               evidence_status = i.status, evidence = i.evidence
          from input i
         where c.tenant = i.tenant and c.key_digest = i.key_digest
           and c.attempt = i.attempt and c.settled_at is null and c.evidence_at is null
        returning i.ord, i.reason, c.*
    ), moved as (
        update gateway.entities e
           set open_until = d.deadline
          from done d
         where e.tenant = d.tenant and e.entity = d.entity and e.open_attempt = d.attempt
    ), told as (
        insert into gateway.audit (
            tenant, id, at, event, principal, policy, entity, key, fence, attempt, request_id,
            fingerprint, reason)
        select d.tenant, gateway.audit_id(d.attempt, 'outcome_unknown'), v_now, 'outcome_unknown',
               d.principal, d.policy, d.entity, d.key, d.fence, d.attempt, d.request_id,
               d.fingerprint, d.reason
          from done d
            on conflict (tenant, id) do nothing
    )
    select i.ord, d.ord is not null from input i left join done d on d.ord = i.ord;
end
$$;

-- A person decides one unknown command. Guard: compare-and-set on the attempt that was judged and
-- on "not settled, past its deadline"; "not executed" also waits for settle_delay_s.
-- Returns: resolved | missing | settled | in-flight | changed (another attempt holds the key)
-- | too-early (p_executed false and the upstream may still act; remaining_s says how long).
create function gateway.resolve(
    p_tenant int, p_key_digest bytea, p_attempt uuid, p_executed boolean, p_reason text,
    p_principal text
) returns table (result text, remaining_s int)
language plpgsql
as $$
declare
    v_now timestamptz;
    v_row gateway.commands;
    v_left interval;
begin
    perform gateway.lock_open(array[p_tenant], array[c.entity], array[c.attempt])
       from gateway.commands c
      where c.tenant = p_tenant and c.key_digest = p_key_digest;
    select * into v_row from gateway.commands c
     where c.tenant = p_tenant and c.key_digest = p_key_digest
       for update;
    v_now := gateway.clock();
    v_left := v_row.deadline + make_interval(secs => v_row.settle_delay_s) - v_now;

    if v_row.attempt is null then
        return query select 'missing', 0;
        return;
    elsif v_row.attempt <> p_attempt then
        return query select 'changed', 0;
        return;
    elsif v_row.settled_at is not null then
        return query select 'settled', 0;
        return;
    elsif v_row.deadline > v_now then
        return query select 'in-flight', ceil(extract(epoch from v_row.deadline - v_now))::int;
        return;
    elsif not p_executed and v_left > interval '0' then
        return query select 'too-early', ceil(extract(epoch from v_left))::int;
        return;
    end if;

    if p_executed then
        update gateway.commands c
           set settled_at = v_now, settled_by = 'resolved',
               expires_at = v_now + make_interval(days => c.key_days)
         where c.tenant = p_tenant and c.key_digest = p_key_digest
           and c.attempt = p_attempt and c.settled_at is null;
    else
        delete from gateway.commands c
         where c.tenant = p_tenant and c.key_digest = p_key_digest
           and c.attempt = p_attempt and c.settled_at is null;
    end if;
    update gateway.entities e
       set open_key = null, open_attempt = null, open_until = null, touched_at = v_now
     where e.tenant = p_tenant and e.entity = v_row.entity and e.open_attempt = p_attempt;
    insert into gateway.audit (
        tenant, id, at, event, principal, policy, entity, key, fence, attempt, request_id,
        fingerprint, reason)
    values (
        -- Not derived from the attempt: the guard lets each verdict through once, and an attempt that
        -- was given back may stand there again, admitted by a try whose answer was lost.
        p_tenant, gen_random_uuid(), v_now, 'resolved', p_principal, v_row.policy, v_row.entity,
        v_row.key, v_row.fence, p_attempt, v_row.request_id, v_row.fingerprint,
        (case when p_executed then 'executed: ' else 'not executed: ' end) || p_reason);
    return query select 'resolved', 0;
end
$$;
