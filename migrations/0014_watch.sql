-- Looking after commands that nobody settled: said in the audit, and asked about where the policy
-- knows how. Any process does all of it; what another has locked is passed over, and what a process
-- that died was doing comes due again. Locks: watched only, and behind everything else in conclude.

-- That an outcome is unknown for which no process is left to say so. Guard: unsettled, past its
-- deadline, this attempt, and nothing was heard of it. Once for each attempt.
create function gateway.tell_unknown(p_tenant int[], p_key_digest bytea[], p_attempt uuid[])
returns void
language sql
as $$
    insert into gateway.audit (
        tenant, id, at, event, principal, policy, entity, key, fence, attempt, request_id, fingerprint,
        reason)
    select c.tenant, gateway.audit_id(c.attempt, 'outcome_unknown by time'), gateway.clock(),
           'outcome_unknown', c.principal, c.policy, c.entity, c.key, c.fence, c.attempt, c.request_id,
           c.fingerprint,
           'the gateway ended before it was recorded, or could not reach the database until the deadline'
      from unnest(p_tenant, p_key_digest, p_attempt) as i (tenant, key_digest, attempt)
      join gateway.commands c on c.tenant = i.tenant and c.key_digest = i.key_digest
     where c.attempt = i.attempt and c.settled_at is null and c.evidence_at is null
       and c.deadline <= gateway.clock()
        on conflict (tenant, id) do nothing;
$$;

-- Read on in the commands by the time of their admission, at most p_limit of them, and put those that
-- are not settled on the list. Guard: one at a time for each pass, and none that is younger than its
-- lag. Returns how many were read; p_limit says that more are there.
create function gateway.sweep(p_name text, p_limit int) returns int
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_from timestamptz;
    v_upto timestamptz;
    v_to   timestamptz;
    v_n    int;
begin
    select s.swept_to, gateway.clock() - s.lag into v_from, v_upto
      from gateway.sweeps s where s.name = p_name
       for update skip locked;
    if not found then
        return 0;
    elsif v_from > v_upto then
        -- The clock stepped back: what is admitted now is younger than what was read. What was admitted
        -- since the step and is older than the lag comes with the far pass.
        update gateway.sweeps set swept_to = v_upto where name = p_name;
        return 0;
    end if;
    -- With ties: a batch is admitted at one moment, and must not be cut.
    with read as materialized (
        select c.tenant, c.key_digest, c.attempt, c.policy, c.deadline, c.settled_at, c.admitted_at
          from gateway.commands c
         where c.admitted_at > v_from and c.admitted_at <= v_upto
         order by c.admitted_at
         fetch first p_limit rows with ties
    ), listed as (
        insert into gateway.watched (tenant, key_digest, attempt, policy, due_at)
        select r.tenant, r.key_digest, r.attempt, r.policy, least(r.deadline, v_upto)
          from read r
         where r.settled_at is null
         order by r.tenant, r.key_digest
            on conflict (tenant, key_digest) do update
           set attempt = excluded.attempt, policy = excluded.policy, due_at = excluded.due_at,
               tries = 0, absent_at = null, busy_until = '-infinity', upstream_digest = null,
               asked_at = null, said = null
         where watched.attempt <> excluded.attempt
    )
    select max(r.admitted_at), count(*) into v_to, v_n from read r;
    if v_n = 0 then
        return 0;
    end if;
    update gateway.sweeps set swept_to = v_to where name = p_name;
    return v_n;
end
$$;

-- A command that is settled or gone is no longer watched; nor one that only a person, or a caller's own
-- request, can decide, once it was said that it is unknown. The rows are locked by who calls.
create function gateway.let_go(p_tenant int[], p_key_digest bytea[], p_now timestamptz) returns void
language sql
as $$
    delete from gateway.watched w
     using unnest(p_tenant, p_key_digest) as i (tenant, key_digest)
      left join gateway.commands c
        on c.tenant = i.tenant and c.key_digest = i.key_digest and c.settled_at is null
     where w.tenant = i.tenant and w.key_digest = i.key_digest
       and (c.attempt is null
            or (c.deadline <= p_now and (c.unknown <> 'probe' or c.probe_target is null)));
$$;

-- Take what is due. Of what nobody has looked at yet, whoever's it is, at most p_limit: say what is
-- unknown, forget what is not. Then return what is to be asked about, at most p_asks of it, the
-- policies in turn, so that none waits behind the list of another; what is beyond that stays due.
-- p_policy, p_digest: the commands that this process can ask about, and the upstream, account and key
-- field that it would ask. Guard: due, not being asked about, admitted as "probe", by this policy and
-- to the same upstream and account: another account would know nothing of it, and say so. What this
-- process may not ask about it neither locks nor changes: that is due until one comes which may.
-- What is returned is this process's for p_busy_ms; gateway.probed ends that.
create function gateway.take_due(
    p_policy text[], p_digest bytea[], p_limit int, p_asks int, p_busy_ms int
) returns table (
    tenant int, key_digest bytea, attempt uuid, policy text, entity text, target bytea,
    asked_at timestamptz
)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := gateway.clock();  -- a row that others hold is passed over, never waited for
    v_tenant int[];
    v_digest bytea[];
begin
    select array_agg(d.tenant), array_agg(d.key_digest) into v_tenant, v_digest
      from (select w.tenant, w.key_digest from gateway.watched w
             where w.upstream_digest is null and w.due_at <= v_now
             order by w.due_at limit p_limit
               for update skip locked) as d;
    if v_tenant is not null then
        perform gateway.tell_unknown(
                    array_agg(i.tenant), array_agg(i.key_digest), array_agg(c.attempt))
           from unnest(v_tenant, v_digest) as i (tenant, key_digest)
           join gateway.commands c on c.tenant = i.tenant and c.key_digest = i.key_digest;
        perform gateway.let_go(v_tenant, v_digest, v_now);
        update gateway.watched w
           set attempt = c.attempt, policy = c.policy,
               upstream_digest = case when c.deadline <= v_now then c.upstream_digest end,
               due_at = case when c.deadline <= v_now then w.due_at else c.deadline end
          from unnest(v_tenant, v_digest) as i (tenant, key_digest)
          join gateway.commands c on c.tenant = i.tenant and c.key_digest = i.key_digest
         where w.tenant = i.tenant and w.key_digest = i.key_digest;
    end if;

    select array_agg(d.tenant), array_agg(d.key_digest) into v_tenant, v_digest
      from unnest(p_policy, p_digest) as p (policy, digest)
     cross join lateral (
        select w.tenant, w.key_digest from gateway.watched w
         where w.policy = p.policy and w.upstream_digest = p.digest and w.due_at <= v_now
         order by w.due_at limit p_asks
           for update skip locked) as d;
    if v_tenant is null then
        return;
    end if;
    perform gateway.let_go(v_tenant, v_digest, v_now);

    return query
    with found as (
        select c.tenant, c.key_digest, c.attempt, c.policy, c.entity, c.probe_target, w.due_at,
               w.attempt = c.attempt and c.deadline <= v_now and p.digest is not null as same,
               row_number() over (partition by c.policy order by w.due_at) as place
          from unnest(v_tenant, v_digest) as i (tenant, key_digest)
          join gateway.watched w on w.tenant = i.tenant and w.key_digest = i.key_digest
          join gateway.commands c on c.tenant = i.tenant and c.key_digest = i.key_digest
          left join unnest(p_policy, p_digest) as p (policy, digest)
            on p.policy = c.policy and p.digest = c.upstream_digest
    ), renewed as (  -- the key was given back, and another attempt has it: from the beginning
        update gateway.watched w
           set attempt = f.attempt, policy = f.policy, upstream_digest = null, tries = 0,
               absent_at = null, asked_at = null, said = null
          from found f
         where w.tenant = f.tenant and w.key_digest = f.key_digest and not f.same
    ), due as (
        select f.* from found f
         where f.same
         order by f.place, f.due_at limit p_asks
    ), taken as (
        update gateway.watched w
           set due_at = v_now + p_busy_ms * interval '1 millisecond',
               busy_until = v_now + p_busy_ms * interval '1 millisecond',
               tries = w.tries + 1
          from due d
         where w.tenant = d.tenant and w.key_digest = d.key_digest
    )
    select d.tenant, d.key_digest, d.attempt, d.policy, d.entity, d.probe_target, v_now
      from due d;
end
$$;

-- Which of these commands have some that are due for p_late_s and that the process may not ask about,
-- since they were sent to another upstream, account or key field than it would ask. Reads one row for
-- each digest that is about, and at most a hundred of its own list.
create function gateway.not_ours(p_policy text[], p_digest bytea[], p_late_s int)
returns table (policy text)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_late timestamptz := gateway.clock() - make_interval(secs => p_late_s);
begin
    return query
    with recursive digests (policy, ours, digest) as (
        select p.policy, p.digest, (
            select w.upstream_digest from gateway.watched w
             where w.policy = p.policy and w.upstream_digest is not null
             order by w.upstream_digest limit 1)
          from unnest(p_policy, p_digest) as p (policy, digest)
        union all
        select d.policy, d.ours, (
            select w.upstream_digest from gateway.watched w
             where w.policy = d.policy and w.upstream_digest > d.digest
             order by w.upstream_digest limit 1)
          from digests d
         where d.digest is not null
    )
    select distinct d.policy from digests d
     where d.digest <> d.ours
       and exists (
        select from (
            select w.tenant, w.key_digest from gateway.watched w
             where w.policy = d.policy and w.upstream_digest = d.digest and w.due_at <= v_late
             order by w.due_at limit 100) w
          join gateway.commands c on c.tenant = w.tenant and c.key_digest = w.key_digest
         where c.settled_at is null);
end
$$;

-- The same for one command, because its caller asks (row 8). Guard: that of take_due, but whenever:
-- only not while somebody else is asking.
create function gateway.ask_now(
    p_tenant int, p_key_digest bytea, p_attempt uuid, p_policy text, p_digest bytea, p_busy_ms int
) returns table (
    tenant int, key_digest bytea, attempt uuid, policy text, entity text, target bytea,
    asked_at timestamptz
)
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := gateway.clock();
begin
    return query
    with asked as (
        insert into gateway.watched as w (
            tenant, key_digest, attempt, policy, due_at, busy_until, tries, upstream_digest)
        select c.tenant, c.key_digest, c.attempt, c.policy,
               v_now + p_busy_ms * interval '1 millisecond',
               v_now + p_busy_ms * interval '1 millisecond', 1, c.upstream_digest
          from gateway.commands c
         where c.tenant = p_tenant and c.key_digest = p_key_digest and c.attempt = p_attempt
           and c.settled_at is null and c.deadline <= v_now
           and c.unknown = 'probe' and c.probe_target is not null
           and c.policy = p_policy and c.upstream_digest = p_digest
            on conflict (tenant, key_digest) do update
           set attempt = excluded.attempt, policy = excluded.policy, due_at = excluded.due_at,
               busy_until = excluded.busy_until, tries = w.tries + 1,
               upstream_digest = excluded.upstream_digest,
               absent_at = case when w.attempt = excluded.attempt then w.absent_at end
         where w.busy_until <= v_now
        returning w.tenant, w.key_digest
    )
    select c.tenant, c.key_digest, c.attempt, c.policy, c.entity, c.probe_target, v_now
      from asked a
      join gateway.commands c on c.tenant = a.tenant and c.key_digest = a.key_digest;
    -- Behind the list, as in take_due, or the two could wait for each other.
    perform gateway.tell_unknown(array[p_tenant], array[p_key_digest], array[p_attempt]);
end
$$;

-- A time for people, in UTC.
create function gateway.utc(p_at timestamptz) returns text
language sql immutable
    return to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');

-- What a probe showed. p_verdict: applied | absent | nothing. p_asked_at: the database's time before
-- the probe was sent. p_status, p_headers, p_body: the response to replay, null where none is.
-- Guard: that of conclude. "Not executed" takes two that say so: the first asked not before
-- settle_delay_s after the deadline, the second p_interval_s after the first was recorded.
-- Returns what conclude does, and absent-once (the first that counts) | asked (nothing is proven).
create function gateway.probed(
    p_tenant int, p_key_digest bytea, p_attempt uuid, p_verdict text, p_asked_at timestamptz,
    p_interval_s int, p_reason text, p_principal text, p_status int, p_headers bytea, p_body bytea
) returns text
language plpgsql
set enable_seqscan = off
as $$
declare
    v_now     timestamptz := gateway.clock();
    v_result  text := 'asked';
    v_watched gateway.watched;
    v_counts  timestamptz;  -- from when on "absent" counts
    v_pause   interval := p_interval_s * interval '1 second';
begin
    select c.deadline + make_interval(secs => c.settle_delay_s) into v_counts
      from gateway.commands c
     where c.tenant = p_tenant and c.key_digest = p_key_digest and c.attempt = p_attempt
       and c.settled_at is null;
    select * into v_watched from gateway.watched w
     where w.tenant = p_tenant and w.key_digest = p_key_digest and w.attempt = p_attempt;

    if p_verdict = 'applied'
       or (p_verdict = 'absent' and p_asked_at >= v_counts
           and p_asked_at >= v_watched.absent_at + v_pause) then
        select c.result into v_result from gateway.conclude(
            p_tenant, p_key_digest, p_attempt, p_verdict = 'applied', 'probe',
            case when p_verdict = 'applied' then p_reason
                 else format('%s, asked at %s; so was one that was recorded at %s', p_reason,
                             gateway.utc(p_asked_at), gateway.utc(v_watched.absent_at)) end,
            p_principal, p_status, p_headers, p_body) as c;
    elsif p_verdict = 'absent' and p_asked_at >= v_counts and v_watched.absent_at is null then
        v_result := 'absent-once';
    end if;

    -- Where it is decided there is no such row any more. Pauses double, to five minutes at most,
    -- unless the policy's own is longer.
    update gateway.watched w
       set busy_until = v_now, asked_at = p_asked_at,
           said = p_reason || case
               when v_result = 'absent-once' then '; it takes a second one'
               when p_verdict = 'absent' and p_asked_at < v_counts
                   then '; that counts only when settle_delay_s is over'
               when p_verdict = 'absent' then '; too soon behind the first that counts'
               else '' end,
           absent_at = case when v_result = 'absent-once' then v_now else w.absent_at end,
           due_at = case
               when v_result = 'absent-once' then v_now + v_pause
               when p_verdict = 'absent' and p_asked_at >= v_counts
                   then greatest(w.absent_at + v_pause, v_now)
               else least(
                   v_now + greatest(v_pause, least(v_pause * power(2, least(w.tries - 1, 10)),
                                                   interval '5 minutes')),
                   case when p_verdict = 'absent' then greatest(v_counts, v_now + interval '1 second')
                        else 'infinity' end)
               end
     where w.tenant = p_tenant and w.key_digest = p_key_digest and w.attempt = p_attempt;
    return v_result;
end
$$;
