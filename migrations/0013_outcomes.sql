-- The ends of attempts, with those that took over from others (row 7), and with verdicts that come
-- from elsewhere. Locks as before: entities first, then commands, each in sorted order; watched last.

-- As in 0003. Guard: the attempt's own uuid or one that it took over from, and not settled.
create or replace function gateway.settle(
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
    -- By the key, not by the attempt: the slot may be that of an attempt which took over.
    perform 1
       from gateway.entities e
       join unnest(p_tenant, p_entity, p_key_digest) as i (tenant, entity, key_digest)
         on e.tenant = i.tenant and e.entity = i.entity
      where e.open_key = i.key_digest
      order by e.tenant, e.entity
        for no key update of e;
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
                                      and c.attempt = i.attempt
                                 then 'answer' else 'late' end,
               status = i.status, headers = i.headers, body = i.body,
               expires_at = v_now + make_interval(days => c.key_days)
          from input i
         where c.tenant = i.tenant and c.key_digest = i.key_digest
           and (c.attempt = i.attempt or i.attempt = any (c.earlier)) and c.settled_at is null
        returning i.ord, c.tenant, c.key_digest, c.entity, c.attempt, c.settled_by, c.principal,
                  c.policy, c.key, c.fence, c.request_id, c.fingerprint, c.status,
                  c.attempt = i.attempt as by_own, c.earlier is not null as again
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
               d.fingerprint, format('settled late by the response %s of %s', d.status, case
                   when d.by_own then 'its own attempt' else 'an attempt that was taken over' end)
          from done d
         where d.settled_by = 'late'
            on conflict (tenant, id) do nothing
    ), resent as (
        insert into gateway.audit (
            tenant, id, at, event, principal, policy, entity, key, fence, attempt, request_id,
            fingerprint, reason)
        select d.tenant, gateway.audit_id(d.attempt, 'settled'), v_now, 'settled',
               d.principal, d.policy, d.entity, d.key, d.fence, d.attempt, d.request_id,
               d.fingerprint, format('sent again, and answered %s', d.status)
          from done d
         where d.settled_by = 'answer' and d.again
            on conflict (tenant, id) do nothing
    )
    select i.ord,
           case d.settled_by when 'answer' then 'settled' when 'late' then 'late'
                             else 'unmatched' end
      from input i
      left join done d on d.ord = i.ord;
end
$$;

-- As in 0003. A response to an attempt that was taken over is one to its command.
create or replace function gateway.settle_unmatched(
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
        elsif v_row.settled_at is null and p_attempt = any (v_row.earlier) then
            return 'retry';
        elsif v_row.attempt <> p_attempt and p_attempt = any (v_row.earlier) is not true then
            v_result := 'duplicate';
            v_reason := format('response %s of an attempt whose key was given back; attempt %s holds it now',
                               p_status, v_row.attempt);
        elsif v_row.settled_by in ('resolved', 'probe', 'report') then
            v_result := 'resolved';
            v_reason := format('response %s of a command that was settled as executed by %s', p_status,
                               case v_row.settled_by when 'resolved' then 'a person'
                                                     when 'probe' then 'a probe' else 'a report' end);
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

-- As in 0003. An attempt that took over proves nothing about the one before it, so it is never
-- released: whatever it came to, its command is settled or unknown.
-- p_heard: whether the upstream had heard of it; else nothing left.
create function gateway.release(
    p_tenant int[], p_key_digest bytea[], p_entity text[], p_attempt uuid[], p_reason text[],
    p_heard boolean[]
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
        select * from unnest(p_tenant, p_key_digest, p_attempt, p_reason, p_heard)
               with ordinality as i (tenant, key_digest, attempt, reason, heard, ord)
        order by tenant, key_digest
    ), gone as (
        delete from gateway.commands c
         using input i
         where c.tenant = i.tenant and c.key_digest = i.key_digest
           and c.attempt = i.attempt and c.settled_at is null and c.evidence_at is null
           and c.earlier is null
        returning i.ord, i.reason, i.heard, c.*
    ), known as (
        insert into gateway.given_back as k (tenant, key_digest, first_sent_at, expires_at)
        select g.tenant, g.key_digest, g.admitted_at, v_now + make_interval(days => g.key_days)
          from gone g
         where g.heard and g.upstream_key is not null
            on conflict (tenant, key_digest) do update
           set first_sent_at = least(k.first_sent_at, excluded.first_sent_at),
               expires_at = greatest(k.expires_at, excluded.expires_at)
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

-- For the release before, which sends nothing again.
create or replace function gateway.release(
    p_tenant int[], p_key_digest bytea[], p_entity text[], p_attempt uuid[], p_reason text[]
) returns table (ord bigint, released boolean)
language sql
as $$
    select r.ord, r.released
      from gateway.release(p_tenant, p_key_digest, p_entity, p_attempt, p_reason,
                           array_fill(true, array[cardinality(p_tenant)])) as r;
$$;

-- Send an unknown command again under another attempt (row 7), where its policy says that the upstream
-- can take it. Guard: compare-and-set on the attempt that was judged, not settled, past its deadline;
-- admitted as "resend", by the same command, fingerprint, upstream, account and key field; this fence
-- good; the slot free or its own; and its key first sent so lately, by whichever command had it, that
-- the repeat still arrives within p_within_ms. Its key is the one that was recorded.
-- What was heard before stays in the audit: the row's evidence is that of its attempt.
-- Returns: taken (also where this very attempt did so before), with all attempts before it, the oldest
-- first | changed (admit again) | refused.
create function gateway.take_over(
    p_tenant int, p_key_digest bytea, p_policy text, p_entity text, p_fingerprint bytea,
    p_rules bytea, p_fence bigint, p_issuer_here boolean, p_judged uuid, p_attempt uuid,
    p_principal text, p_request_id text, p_upstream_digest bytea, p_deadline_ms int,
    p_within_ms bigint
) returns table (result text, before uuid[])
language plpgsql
set enable_seqscan = off
as $$
declare
    v_now    timestamptz;
    v_entity gateway.entities;
    v_row    gateway.commands;
begin
    perform 1 from gateway.entities e
      where e.tenant = p_tenant and e.entity = p_entity
        for no key update;
    select * into v_row from gateway.commands c
     where c.tenant = p_tenant and c.key_digest = p_key_digest
       for update;
    select * into v_entity from gateway.entities e
     where e.tenant = p_tenant and e.entity = p_entity;
    v_now := gateway.clock();

    if v_row.attempt = p_attempt and v_row.settled_at is null and v_row.deadline > v_now then
        return query select 'taken', v_row.earlier;
        return;
    elsif v_row.attempt is null or v_row.attempt <> p_judged or v_row.settled_at is not null
       or v_row.deadline > v_now or p_fence < v_entity.fence
       or coalesce(gateway.is_not_held(p_fence, v_entity.held, p_issuer_here), false)
       or (v_row.serial and coalesce(v_entity.open_key, p_key_digest) <> p_key_digest) then
        return query select 'changed', null::uuid[];
        return;
    elsif v_row.unknown <> 'resend' or v_row.upstream_key is null
       or (v_row.policy, v_row.entity, v_row.rules, v_row.fingerprint, v_row.upstream_digest)
          is distinct from (p_policy, p_entity, p_rules, p_fingerprint, p_upstream_digest)
       or gateway.first_sent(p_tenant, p_key_digest, v_row.admitted_at)
          + p_within_ms * interval '1 millisecond' <= v_now
       or coalesce(cardinality(v_row.earlier), 0) >= 16 then
        return query select 'refused', null::uuid[];
        return;
    end if;

    update gateway.commands c
       set attempt = p_attempt, attempts = c.attempts + 1, earlier = c.earlier || p_judged,
           deadline = v_now + p_deadline_ms * interval '1 millisecond', fence = p_fence,
           principal = p_principal, request_id = p_request_id,
           evidence_at = null, evidence_status = null, evidence = null
     where c.tenant = p_tenant and c.key_digest = p_key_digest
       and c.attempt = p_judged and c.settled_at is null
    returning * into v_row;
    update gateway.entities e
       set open_key = p_key_digest, open_attempt = p_attempt, open_until = v_row.deadline,
           touched_at = v_now
     where v_row.serial and e.tenant = p_tenant and e.entity = p_entity;
    -- The sweep has passed its admission, and must hear of it if this process ends.
    insert into gateway.watched (tenant, key_digest, attempt, policy, due_at)
    values (p_tenant, p_key_digest, p_attempt, v_row.policy, v_row.deadline)
        on conflict (tenant, key_digest) do update
       set attempt = excluded.attempt, policy = excluded.policy, due_at = excluded.due_at, tries = 0, absent_at = null,
           upstream_digest = null, asked_at = null, said = null;
    insert into gateway.audit (
        tenant, id, at, event, principal, policy, entity, key, fence, attempt, request_id, fingerprint,
        reason)
    values (
        p_tenant, gateway.audit_id(p_attempt, 'taken_over'), v_now, 'taken_over', p_principal,
        v_row.policy, v_row.entity, v_row.key, p_fence, p_attempt, p_request_id, v_row.fingerprint,
        format('sent again under the same key of its upstream, in place of attempt %s', p_judged))
        on conflict (tenant, id) do nothing;
    return query select 'taken', v_row.earlier;
end
$$;

-- Decide one unknown command, on a person's, a probe's or a report's word (p_by: resolved, probe,
-- report). p_status, p_headers, p_body: a response to replay, null without one. p_attempt null: the
-- one that holds the key now.
-- Guard and results as gateway.resolve in 0003, of which this is the general form: compare-and-set on
-- the attempt that was judged and on "not settled, past its deadline"; "not executed" also waits for
-- settle_delay_s.
create function gateway.conclude(
    p_tenant int, p_key_digest bytea, p_attempt uuid, p_executed boolean, p_by text, p_reason text,
    p_principal text, p_status int, p_headers bytea, p_body bytea
) returns table (result text, remaining_s int)
language plpgsql
set enable_seqscan = off
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
           set settled_at = v_now, settled_by = p_by, status = p_status, headers = p_headers,
               body = p_body, expires_at = v_now + make_interval(days => c.key_days)
         where c.tenant = p_tenant and c.key_digest = p_key_digest
           and c.attempt = v_row.attempt and c.settled_at is null;
    else
        delete from gateway.commands c
         where c.tenant = p_tenant and c.key_digest = p_key_digest
           and c.attempt = v_row.attempt and c.settled_at is null;
        if v_row.upstream_key is not null then
            insert into gateway.given_back as k (tenant, key_digest, first_sent_at, expires_at)
            values (p_tenant, p_key_digest, v_row.admitted_at,
                    v_now + make_interval(days => v_row.key_days))
                on conflict (tenant, key_digest) do update
               set first_sent_at = least(k.first_sent_at, excluded.first_sent_at),
                   expires_at = greatest(k.expires_at, excluded.expires_at);
        end if;
    end if;
    update gateway.entities e
       set open_key = null, open_attempt = null, open_until = null, touched_at = v_now
     where e.tenant = p_tenant and e.entity = v_row.entity and e.open_attempt = v_row.attempt;
    insert into gateway.audit (
        tenant, id, at, event, principal, policy, entity, key, fence, attempt, request_id,
        fingerprint, reason)
    values (
        -- Not derived from the attempt: the guard lets each verdict through once, and an attempt that
        -- was given back may stand there again, admitted by a try whose answer was lost.
        p_tenant, gen_random_uuid(), v_now, 'resolved', p_principal, v_row.policy, v_row.entity,
        v_row.key, v_row.fence, v_row.attempt, v_row.request_id, v_row.fingerprint,
        (case when p_executed then 'executed: ' else 'not executed: ' end) || p_reason);
    delete from gateway.watched w where w.tenant = p_tenant and w.key_digest = p_key_digest;
    return query select 'resolved', 0;
end
$$;

-- As in 0003.
create or replace function gateway.resolve(
    p_tenant int, p_key_digest bytea, p_attempt uuid, p_executed boolean, p_reason text,
    p_principal text
) returns table (result text, remaining_s int)
language sql
as $$
    select result, remaining_s from gateway.conclude(
        p_tenant, p_key_digest, p_attempt, p_executed, 'resolved', p_reason, p_principal, null, null,
        null);
$$;

-- What somebody outside reports of one command (POST /v1/evidence). Guard: that of conclude. What can
-- no longer decide and agrees with the record leaves nothing: a webhook reports every command. What
-- contradicts it, is about another attempt, or says that a command was executed of which there is none
-- (its key may have been given back) goes to the audit, once however often it is reported.
-- That an attempt was executed which was taken over decides as its late answer would (settle); that it
-- was not says nothing about the one that took over. The body is kept where it is within the keep_limit
-- of the command's policy: p_policies, p_keep_limits are those that this process has.
-- Returns what conclude does, and contradicts (settled, and this says not executed) | orphan (none
-- there, and this says executed).
create function gateway.report(
    p_tenant int, p_key_digest bytea, p_key text, p_attempt uuid, p_executed boolean, p_reason text,
    p_principal text, p_request_id text, p_status int, p_headers bytea, p_body bytea,
    p_policies text[], p_keep_limits int[]
) returns table (result text, remaining_s int)
language plpgsql
as $$
declare
    v_result text;
    v_left   int;
    v_judged uuid := p_attempt;
    v_kept   bytea;
    v_row    gateway.commands;
    v_told   text := (case when p_executed then 'executed: ' else 'not executed: ' end) || p_reason;
begin
    -- The locks of conclude, before it: what is read here stays.
    perform gateway.lock_open(array[p_tenant], array[c.entity], array[c.attempt])
       from gateway.commands c
      where c.tenant = p_tenant and c.key_digest = p_key_digest;
    select * into v_row from gateway.commands c
     where c.tenant = p_tenant and c.key_digest = p_key_digest
       for update;
    if p_executed and p_attempt = any (v_row.earlier) then
        v_judged := v_row.attempt;
    end if;
    select p_body into v_kept
      from unnest(p_policies, p_keep_limits) as k (policy, keep_limit)
     where k.policy = v_row.policy and octet_length(p_body) <= k.keep_limit;
    select c.result, c.remaining_s into v_result, v_left from gateway.conclude(
        p_tenant, p_key_digest, v_judged, p_executed, 'report', p_reason, p_principal, p_status,
        p_headers, v_kept) as c;
    v_result := case when v_result = 'settled' and not p_executed then 'contradicts'
                     when v_result = 'missing' and p_executed then 'orphan'
                     else v_result end;
    if v_result in ('contradicts', 'orphan', 'changed') then
        select * into v_row from gateway.commands c
         where c.tenant = p_tenant and c.key_digest = p_key_digest;
        insert into gateway.audit (
            tenant, id, at, event, principal, policy, entity, key, fence, attempt, request_id,
            fingerprint, reason)
        values (
            p_tenant,
            gateway.audit_id(coalesce(p_attempt, v_row.attempt, encode(p_key_digest, 'hex')::uuid),
                             'late_evidence ' || v_told),
            gateway.clock(), 'late_evidence', p_principal, v_row.policy, v_row.entity, p_key,
            v_row.fence, coalesce(p_attempt, v_row.attempt), p_request_id, v_row.fingerprint,
            format('reported %s; but %s', v_told, case v_result
                when 'contradicts' then 'it is recorded as executed'
                when 'orphan' then 'no command stands there'
                else 'another attempt holds the key' end))
            on conflict (tenant, id) do nothing;
    end if;
    return query select v_result, v_left;
end
$$;

-- Given-back keys that have expired, the oldest first. One that an unsettled command has stays, or that
-- command's window would begin anew. Returns how many went.
create function gateway.forget_given_back(p_limit int) returns bigint
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now  timestamptz := gateway.clock();
    v_gone bigint;
begin
    delete from gateway.given_back g
     using (
        select o.tenant, o.key_digest
          from gateway.given_back o
         where o.expires_at <= v_now
           and not exists (
               select from gateway.commands c
                where c.tenant = o.tenant and c.key_digest = o.key_digest and c.settled_at is null)
         order by o.expires_at
         limit p_limit
           for update skip locked
     ) d
     where g.tenant = d.tenant and g.key_digest = d.key_digest;
    get diagnostics v_gone = row_count;
    return v_gone;
end
$$;
