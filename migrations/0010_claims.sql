-- Who claims, and which documents SQL may enqueue. Both keep their signatures, so that the release
-- before runs beside them.

-- Claim as before (see 0007 for its guard and its rounds). New: a claim that is repeated is one of the
-- same worker. A uuid may be copied from an example, or drawn before a fork, and two workers that have
-- the same one must not get the same lease, with one fence for both. The lock is by tenant and uuid,
-- whoever claims: what a claim found to be its own is still so when it is read, and no other tenant
-- waits for it.
create or replace function gateway.claim_jobs(
    p_tenant int, p_n int, p_owner text, p_claim uuid, p_tool text[], p_lease_ms int[],
    p_total_ms int[], p_attempts int[], p_max_running int[], p_max_per_user int[]
) returns table (
    job uuid, entity text, fence bigint, remaining_ms bigint, total_remaining_ms bigint,
    attempt int, max_attempts int, key text, tool text, session text, on_behalf text, model text,
    provider text, stage text, stage_no int, payload bytea, previous bytea, last_error text,
    give_up_ms bigint
)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now    timestamptz;
    v_look   int := p_n;    -- how many jobs a round looks at
    v_seen   int;           -- how many it saw, and
    v_ids    uuid[];        -- those of them that it could lock
    v_over   uuid[];
    v_chosen uuid[];        -- those that may run, and
    v_wanted text[];        -- their entities, of which
    v_locked text[];        -- these could be locked
    v_passed text[] := '{}';-- entities that are not looked at again
    v_got    text[];        -- entities leased by this round, and
    v_leased text[] := '{}';-- by all
    v_limits boolean := exists (
        select from unnest(p_max_running || p_max_per_user) as m (n) where m.n is not null);
begin
    perform pg_advisory_xact_lock(
        hashtextextended(format('fencegate claim %s %s', p_tenant, p_claim), 0));
    select array_agg(l.entity) into v_got
      from gateway.job_leases l
     where l.tenant = p_tenant and l.claim = p_claim and l.owner = p_owner;
    if v_got is not null then
        return query select * from gateway.leases_of(p_tenant, p_claim, v_got);
        return;
    end if;
    perform pg_advisory_xact_lock(t.lock)
       from (select hashtextextended(format('fencegate tool %s %s', p_tenant, t.tool), 0) as lock
               from unnest(p_tool, p_max_running, p_max_per_user) as t (tool, max_running, max_per_user)
              where t.max_running is not null or t.max_per_user is not null
              order by 1) as t;

    -- What has come due, at most 200: a thousand that are due at once cost five claims.
    v_now := gateway.clock();
    with due as materialized (
        select j.id from gateway.jobs j
         where j.tenant = p_tenant and j.state = 'scheduled' and j.run_at <= v_now
         order by j.run_at limit 200
           for no key update skip locked
    )
    update gateway.jobs j set state = 'ready'
      from due d
     where j.tenant = p_tenant and j.id = d.id;

    perform gateway.free_behind_users(p_tenant, p_tool, p_max_per_user);

    -- 12 rounds of at most 512 jobs: some 4,000 that cannot be served are passed in one claim, which
    -- takes 50 ms; more wait for the next claim, and each is passed only once for each lease.
    for v_round in 1 .. 12 loop
        with running as materialized (
            select l.tool, count(*) as n from gateway.job_leases l
             where v_limits and l.tenant = p_tenant
             group by l.tool
        ), tool as materialized (
            select t.tool
              from unnest(p_tool, p_max_running) as t (tool, max_running)
              left join running r on r.tool = t.tool
             where t.max_running is null or t.max_running > coalesce(r.n, 0)
        ), head as materialized (
            select h.tool, count(*) as n
              from (select t.tool
                      from tool t
                     cross join lateral (
                        select j.priority, j.run_at, j.seq from gateway.jobs j
                         where j.tenant = p_tenant and j.tool = t.tool and j.state = 'ready'
                           and j.entity <> all (v_passed)
                         order by j.priority, j.run_at, j.seq limit v_look) as j
                     order by j.priority, j.run_at, j.seq limit v_look) as h
             group by h.tool
        ), locked as materialized (
            select j.id
              from head h
             cross join lateral (
                select j.id from gateway.jobs j
                 where j.tenant = p_tenant and j.tool = h.tool and j.state = 'ready'
                   and j.entity <> all (v_passed)
                 order by j.priority, j.run_at, j.seq limit h.n
                   for no key update skip locked) as j
        )
        select (select coalesce(sum(h.n), 0) from head h),
               (select coalesce(array_agg(l.id), '{}') from locked l)
          into v_seen, v_ids;
        -- All that is ready was seen, and others are at it.
        exit when v_ids = '{}' and (v_seen < v_look or v_look >= 512);

        v_now := gateway.clock();
        select array_agg(j.id) into v_over
          from gateway.jobs j
          join unnest(p_tool, p_attempts) as t (tool, attempts) on t.tool = j.tool
         where j.tenant = p_tenant and j.id = any (v_ids)
           and (j.give_up_at <= v_now or j.attempts >= t.attempts);
        if v_over is not null then
            perform gateway.give_up(p_tenant, v_over);
        end if;

        with running as materialized (
            select l.tool, l.on_behalf, count(*) as n from gateway.job_leases l
             where v_limits and l.tenant = p_tenant
             group by l.tool, l.on_behalf
        ), candidate as materialized (
            select j.*, t.max_running, t.max_per_user
              from gateway.jobs j
              join unnest(p_tool, p_max_running, p_max_per_user)
                   as t (tool, max_running, max_per_user) on t.tool = j.tool
             where j.tenant = p_tenant and j.id = any (v_ids)
               and not exists (select from gateway.job_leases l
                                where l.tenant = p_tenant and l.entity = j.entity)
        ), of_user as materialized (
            select c.*, case when c.max_per_user is not null and c.on_behalf is not null then
                       row_number() over (partition by c.tool, c.on_behalf
                                          order by c.priority, c.run_at, c.seq)
                       + coalesce((select r.n from running r
                                    where r.tool = c.tool and r.on_behalf = c.on_behalf), 0)
                   end as user_no
              from candidate c
        ), of_tool as materialized (
            select u.*, case when u.max_running is not null then
                       row_number() over (partition by u.tool order by u.priority, u.run_at, u.seq)
                       + coalesce((select sum(r.n) from running r where r.tool = u.tool), 0)
                   end as tool_no
              from of_user u
             where u.user_no is null or u.user_no <= u.max_per_user
        ), chosen as materialized (
            select o.id, o.entity from of_tool o
             where o.tool_no is null or o.tool_no <= o.max_running
             order by o.priority, o.run_at, o.seq
             limit p_n - cardinality(v_leased)
        )
        select coalesce(array_agg(c.id), '{}'), coalesce(array_agg(distinct c.entity), '{}')
          into v_chosen, v_wanted
          from chosen c;

        perform gateway.make_entities(p_tenant, v_wanted);
        select coalesce(array_agg(e.entity), '{}') into v_locked
          from (select e.entity from gateway.entities e
                 where e.tenant = p_tenant and e.entity = any (v_wanted)
                   -- Above, bigint has no room for a fence, a jump and an end; one such entity must
                   -- not fail the claim. Its jobs stay ready.
                   and e.fence < 9223372036853727229
                 order by e.entity
                   for no key update skip locked) as e;
        v_now := gateway.clock();
        with leased as (
            insert into gateway.job_leases (
                tenant, entity, job, fence, owner, claim, tool, on_behalf, lease_ms, granted_at,
                beat_at, lease_until, total_until)
            select p_tenant, j.entity, j.id, e.fence, p_owner, p_claim, j.tool, j.on_behalf, t.lease_ms,
                   v_now, v_now, v_now + least(t.lease_ms, t.total_ms) * interval '1 millisecond',
                   v_now + t.total_ms * interval '1 millisecond'
              from gateway.jobs j
              join unnest(p_tool, p_lease_ms, p_total_ms) as t (tool, lease_ms, total_ms)
                on t.tool = j.tool
             cross join lateral (
                select gateway.next_fence(e.fence, e.held) as fence from gateway.entities e
                 where e.tenant = p_tenant and e.entity = j.entity
                offset 0) as e
             where j.tenant = p_tenant and j.id = any (v_chosen) and j.entity = any (v_locked)
               and (j.give_up_at is null or j.give_up_at > v_now)
             order by j.entity, j.priority, j.run_at, j.seq
                on conflict (tenant, entity) do nothing
            returning entity, job, tool
        ), started as (
            update gateway.jobs j
               set state = 'running', attempts = j.attempts + 1, max_attempts = t.attempts
              from leased l
              join unnest(p_tool, p_attempts) as t (tool, attempts) on t.tool = l.tool
             where j.tenant = p_tenant and j.id = any (v_ids) and j.id = l.job
        )
        select coalesce(array_agg(l.entity), '{}') into v_got from leased l;
        update gateway.entities e
           set fence = gateway.next_fence(e.fence, e.held), held = gateway.next_fence(e.fence, e.held),
               touched_at = v_now
         where e.tenant = p_tenant and e.entity = any (v_got);
        v_leased := v_leased || v_got;

        if cardinality(v_got) < cardinality(v_ids) then
            perform gateway.set_behind(p_tenant, v_ids, p_tool, p_max_per_user);
            -- What stays ready beside a lease, which somebody is just ending, is passed over too.
            select v_passed || coalesce(array_agg(distinct j.entity), '{}') into v_passed
              from gateway.jobs j
             where j.tenant = p_tenant and j.id = any (v_ids) and j.state = 'ready'
               and (j.entity = any (v_wanted) and j.entity <> all (v_locked)
                    or exists (select from gateway.job_leases l
                                where l.tenant = p_tenant and l.entity = j.entity));
        end if;
        exit when cardinality(v_leased) >= p_n;
        v_look := least(4 * v_look, 512);
    end loop;

    if v_leased <> '{}' then
        return query select * from gateway.leases_of(p_tenant, p_claim, v_leased);
    end if;
end
$$;

-- Why a JSON document is not one that every reader takes, or null: the bounds of what comes over HTTP
-- (gateway.core.canonical). A worker that cannot read a payload could only fail the job, long after
-- whoever sent it has gone. Short documents cost nothing; 256 KiB take 30 ms, and 120 ms at the worst.
create function gateway.trouble_in_json(document text) returns text
language plpgsql immutable strict
as $$
declare
    v_bare   text;
    v_levels int := 0;
begin
    if length(document) <= 1000
       and length(document) - length(translate(document, '[{', '')) <= 128 then
        return null;
    end if;
    v_bare := regexp_replace(document, '"(?:[^"\\]|\\.)*"', '', 'g');
    if replace(v_bare, '.', '') ~ '([0-9]{250}){4}[0-9]' then
        return 'has a number of more than 1000 digits';
    end if;
    -- Whatever has nothing in it is taken out, once for each level; all brackets are alike, or {[]}
    -- would go at once.
    v_bare := translate(regexp_replace(v_bare, '[^][{}]+', '', 'g'), '{}', '[]');
    while v_bare <> '' loop
        v_levels := v_levels + 1;
        if v_levels > 128 then
            return 'is nested deeper than 128 levels';
        end if;
        v_bare := replace(v_bare, '[]', '');
    end loop;
    return null;
end
$$;

-- Enqueue from SQL as before (see 0007). New: the bounds of the payload.
create or replace function gateway.enqueue(
    p_tenant text, p_tool text, p_payload json default '{}', p_key text default null,
    p_entity text default null, p_session text default null, p_on_behalf text default null,
    p_priority int default 5, p_run_at timestamptz default null,
    p_give_up_at timestamptz default null
) returns uuid
language plpgsql
as $$
declare
    v_id      uuid := gen_random_uuid();
    v_tenant  int;
    v_job     uuid;
    v_trouble text;
begin
    select t.tenant into v_tenant from gateway.tenants t where t.name = p_tenant;
    if v_tenant is null then
        raise exception 'there is no tenant %', coalesce(quote_literal(p_tenant), 'null')
            using errcode = 'undefined_object',
                  hint = 'Name one that has a gateway key, or ''default'' where there are no keys.';
    end if;
    if not (gateway.is_job_time(p_run_at) and gateway.is_job_time(p_give_up_at)) then
        raise exception 'p_run_at and p_give_up_at lie in the years 1970 to 9998'
            using errcode = 'invalid_parameter_value',
                  hint = 'Leave p_run_at out for at once, and p_give_up_at for never.';
    end if;
    -- What is larger than a payload may be is refused by the table, unread.
    if octet_length(convert_to(p_payload::text, 'UTF8')) <= 262144 then
        v_trouble := gateway.trouble_in_json(p_payload::text);
    end if;
    if v_trouble is not null then
        raise exception 'p_payload %', v_trouble
            using errcode = 'invalid_parameter_value',
                  hint = 'Flatten it, send a long number as a string, or send a reference.';
    end if;
    select e.job into strict v_job from gateway.enqueue_jobs(
        v_tenant, array[v_id], array[coalesce(p_key, v_id::text)], array[p_tool], array[p_session],
        array[p_on_behalf], array[null::text], array[null::text], array[null::text], array[p_entity],
        array[convert_to(p_payload::text, 'UTF8')], array[p_priority::smallint], array[p_run_at],
        array[p_give_up_at]) as e;
    return v_job;
end
$$;
