-- What is done to jobs and leases.
-- Rows are joined to arrays by `= any (array)` beside the join, or by look-ups that `offset 0` keeps
-- apart: on fresh tables, without statistics, the planner would rather read all rows of the tenant, or
-- compare each with each.
-- Every function locks first, then reads the clock, and only then judges. The order of locks, here and
-- in every other statement: entities, leases, jobs, commands; each in sorted order. Somebody's own
-- transaction may hold an entity for long (gateway.issue_fence), so nothing else is held by who waits
-- for one: ends and cancels take entities before all else; claims, which find jobs first, and the
-- reaper pass over what they do not get at once. A lease is over from the moment that its lease_until
-- is not above the clock, whether or not that is recorded.

-- The id of an audit row about one lease, so that a statement repeated after a lost answer writes it
-- once.
create function gateway.lease_audit_id(
    entity text, job uuid, fence bigint, what bytea, event text
) returns uuid
    language sql immutable
    return encode(substring(sha256(
        uuid_send(job) || int8send(fence) || sha256(convert_to(entity, 'UTF8'))
        || coalesce(what, '') || convert_to(event, 'UTF8')) from 1 for 16), 'hex')::uuid;

-- Make the best job behind each entity, for each tool, and behind each tool and user, ready again. For
-- each tool: nobody may be there who claims another one.
-- Guard: only what is still behind. Where another transaction took the pick away meanwhile, the next
-- is picked: a job that stayed behind nothing would be lost.
create function gateway.unblock(p_tenant int, p_entity text[], p_tool text[], p_on_behalf text[])
returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_best  uuid[];
    v_freed int;
begin
    loop
        -- From one tool to the next by the index, however many jobs of each there are.
        with recursive behind (entity, tool) as (
            select i.entity, (
                   select j.tool from gateway.jobs j
                    where j.tenant = p_tenant and j.entity = i.entity and j.state = 'behind-entity'
                    order by j.tool limit 1)
              from (select distinct i.entity from unnest(p_entity) as i (entity)) as i
            union all
            select b.entity, (
                   select j.tool from gateway.jobs j
                    where j.tenant = p_tenant and j.entity = b.entity and j.state = 'behind-entity'
                      and j.tool > b.tool
                    order by j.tool limit 1)
              from behind b
             where b.tool is not null
        )
        select coalesce(array_agg(b.id), '{}') into v_best
          from (select b.id
                  from behind i
                 cross join lateral (
                    select j.id from gateway.jobs j
                     where j.tenant = p_tenant and j.entity = i.entity and j.tool = i.tool
                       and j.state = 'behind-entity'
                     order by j.priority, j.run_at, j.seq limit 1) as b
                union
                select b.id
                  from unnest(p_tool, p_on_behalf) as i (tool, on_behalf)
                 cross join lateral (
                    select j.id from gateway.jobs j
                     where j.tenant = p_tenant and j.tool = i.tool and j.on_behalf = i.on_behalf
                       and j.state = 'behind-user'
                     order by j.priority, j.run_at, j.seq limit 1) as b) as b;
        exit when v_best = '{}';

        perform 1 from gateway.jobs j
          where j.tenant = p_tenant and j.id = any (v_best)
          order by j.id
            for no key update;
        update gateway.jobs j set state = 'ready'
         where j.tenant = p_tenant and j.id = any (v_best)
           and j.state in ('behind-entity', 'behind-user');
        get diagnostics v_freed = row_count;
        exit when v_freed = cardinality(v_best);
    end loop;
end
$$;

-- Enqueue. Usable inside any transaction of the caller's.
-- Guard: a job is inserted only where its key is new. For a known key the first job comes back with
-- what became of it; same: tool and payload are equal. A repeated call with the same ids finds its own.
create function gateway.enqueue_jobs(
    p_tenant int, p_id uuid[], p_key text[], p_tool text[], p_session text[], p_on_behalf text[],
    p_model text[], p_provider text[], p_stage text[], p_entity text[], p_payload bytea[],
    p_priority smallint[], p_run_at timestamptz[], p_give_up_at timestamptz[]
) returns table (ord bigint, job uuid, same boolean, state text, result bytea, error text)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := gateway.clock();  -- nothing is judged by it but what is due at once
begin
    with input as (
        select * from unnest(
            p_id, p_key, p_tool, p_session, p_on_behalf, p_model, p_provider, p_stage, p_entity,
            p_payload, p_priority, p_run_at, p_give_up_at
        ) with ordinality as i (
            id, key, tool, session, on_behalf, model, provider, stage, entity,
            payload, priority, run_at, give_up_at, ord)
    ), fresh as (
        insert into gateway.job_keys (tenant, key, job)
        select p_tenant, i.key, i.id from input i order by i.key collate "C", i.ord
            on conflict (tenant, key) do nothing
        returning key, job
    )
    insert into gateway.jobs (
        tenant, id, key, tool, session, on_behalf, model, provider, stage, entity, payload, priority,
        run_at, give_up_at, created_at, state)
    select p_tenant, i.id, i.key, i.tool, i.session, i.on_behalf, i.model, i.provider, i.stage,
           coalesce(i.entity, 'job:' || i.id), i.payload, i.priority, coalesce(i.run_at, v_now),
           i.give_up_at, v_now, case when i.run_at > v_now then 'scheduled' else 'ready' end
      from input i
      join fresh f on f.key = i.key and f.job = i.id
     order by i.ord;

    -- A fresh snapshot: the first job of a key may have been committed meanwhile.
    return query
    select i.ord, k.job, i.tool = coalesce(j.tool, h.tool) and i.payload = coalesce(j.payload, h.payload),
           coalesce(j.state, h.state), h.result, coalesce(h.error, j.last_error)
      from unnest(p_key, p_tool, p_payload) with ordinality as i (key, tool, payload, ord)
      join gateway.job_keys k on k.tenant = p_tenant and k.key = any (p_key) and k.key = i.key
      left join gateway.jobs j on j.tenant = p_tenant and j.id = k.job
      left join gateway.job_history h on h.tenant = p_tenant and h.id = k.job;
end
$$;

-- The same for SQL users, one job: select gateway.enqueue('default', 'charge', '{"amount": 1200}',
-- p_key => 'order-17'). Returns the id of the job under that key. Which tools there are stands in
-- policies/tools.toml, which SQL cannot read: a job of an unknown one waits until somebody claims it.
create function gateway.enqueue(
    p_tenant text, p_tool text, p_payload json default '{}', p_key text default null,
    p_entity text default null, p_session text default null, p_on_behalf text default null,
    p_priority int default 5, p_run_at timestamptz default null,
    p_give_up_at timestamptz default null
) returns uuid
language plpgsql
as $$
declare
    v_id     uuid := gen_random_uuid();
    v_tenant int;
    v_job    uuid;
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
    select e.job into strict v_job from gateway.enqueue_jobs(
        v_tenant, array[v_id], array[coalesce(p_key, v_id::text)], array[p_tool], array[p_session],
        array[p_on_behalf], array[null::text], array[null::text], array[null::text], array[p_entity],
        array[convert_to(p_payload::text, 'UTF8')], array[p_priority::smallint], array[p_run_at],
        array[p_give_up_at]) as e;
    return v_job;
end
$$;

-- Give queued or waiting jobs up. Guard: the caller holds their row locks and judged them.
create function gateway.give_up(p_tenant int, p_job uuid[]) returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now       timestamptz := gateway.clock();
    v_entity    text[];
    v_tool      text[];
    v_on_behalf text[];
begin
    with gone as (
        delete from gateway.jobs j
         where j.tenant = p_tenant and j.id = any (p_job) and j.state <> 'running'
        returning j.*
    ), finished as (
        insert into gateway.job_history (
            tenant, id, key, tool, session, on_behalf, model, provider, stage, stage_no, entity,
            payload, previous, priority, created_at, attempts, finished_at, state, error)
        select g.tenant, g.id, g.key, g.tool, g.session, g.on_behalf, g.model, g.provider, g.stage,
               g.stage_no, g.entity, g.payload, g.previous, g.priority, g.created_at, g.attempts,
               v_now, 'failed',
               left(case when g.give_up_at <= v_now then 'not done before give_up_at'
                         else 'all attempts were used' end
                    || coalesce('; the last error: ' || g.last_error, ''), 4096)
          from gone g
    )
    -- Others may have waited behind what was ready.
    select array_agg(g.entity), array_agg(g.tool), array_agg(g.on_behalf)
      into v_entity, v_tool, v_on_behalf
      from gone g
     where g.state = 'ready';
    perform gateway.unblock(p_tenant, v_entity, v_tool, v_on_behalf);
end
$$;

-- The leases of one claim that are not over, with their jobs.
create function gateway.leases_of(p_tenant int, p_claim uuid, p_entity text[])
returns table (
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
declare
    v_now timestamptz := gateway.clock();
begin
    return query
    select j.id, l.entity, l.fence,
           floor(extract(epoch from l.lease_until - v_now) * 1000)::bigint,
           floor(extract(epoch from l.total_until - v_now) * 1000)::bigint,
           j.attempts, j.max_attempts, j.key, j.tool, j.session, j.on_behalf, j.model, j.provider,
           j.stage, j.stage_no, j.payload, j.previous, j.last_error,
           case when isfinite(j.give_up_at)
                then floor(extract(epoch from j.give_up_at - v_now) * 1000)::bigint end
      from gateway.job_leases l
     cross join lateral (
        select j.* from gateway.jobs j where j.tenant = p_tenant and j.id = l.job
        offset 0) as j
     where l.tenant = p_tenant and l.claim = p_claim and l.lease_until > v_now
       and l.entity = any (p_entity)
     order by j.priority, j.run_at, j.seq;
end
$$;

-- Claim up to p_n jobs of these tools, best first: priority, then run_at, then seq. One row of the
-- p_tool… arrays for each tool; p_max_running, p_max_per_user null: no limit.
--
-- Guard: only what is ready, not past give_up_at and below its attempts; a lease is inserted only
-- where its entity has none, under the entity's row lock, and the entity's counter is raised in the
-- same commit. A job whose entity somebody else has locked stays ready and is passed over.
--
-- A claim repeated with the same uuid waits for the first and returns its leases. Claims of a limited
-- tool come one after the other (one lock for each tenant and tool), so that what they count cannot
-- change but downwards; they count leases, so there is no counter that could leak.
--
-- It works in rounds. A round locks the next jobs and their entities, leases what may run, and sets
-- what may not behind the lease that is in its way. A job is set behind only under a lock on that
-- lease, so that its end cannot be missed. The first round locks just as many as are wanted, so that claims side by side
-- take different jobs; later ones look further.
create function gateway.claim_jobs(
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
    perform pg_advisory_xact_lock(hashtextextended('fencegate claim ' || p_claim, 0));
    select array_agg(l.entity) into v_got
      from gateway.job_leases l where l.tenant = p_tenant and l.claim = p_claim;
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

-- Make the rows of entities that have none. One that somebody else is just making is not waited for:
-- a transaction of a user's own may take long (gateway.issue_fence). 5 ms: longer than a commit of
-- ours; after ten such the rest is left too, so that a claim loses 50 ms in a round at most.
create function gateway.make_entities(p_tenant int, p_entity text[]) returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '5ms'
as $$
declare
    v_missing text[];
    v_entity  text;
    v_waited  int := 0;
begin
    select array_agg(i.entity order by i.entity collate "C") into v_missing
      from unnest(p_entity) as i (entity)
     where not exists (select from gateway.entities e
                        where e.tenant = p_tenant and e.entity = i.entity);
    if v_missing is null then
        return;
    end if;
    begin
        insert into gateway.entities (tenant, entity, touched_at)
        select p_tenant, i.entity, gateway.clock()
          from unnest(v_missing) with ordinality as i (entity, ord)
         order by i.ord
            on conflict (tenant, entity) do nothing;
        return;
    exception when lock_not_available then
        null;  -- one by one
    end;
    foreach v_entity in array v_missing loop
        begin
            insert into gateway.entities (tenant, entity, touched_at)
            values (p_tenant, v_entity, gateway.clock())
                on conflict (tenant, entity) do nothing;
        exception when lock_not_available then
            v_waited := v_waited + 1;
            exit when v_waited = 10;
        end;
    end loop;
end
$$;

-- Where a tool's limit for one user was raised since its jobs were set behind, make as many ready as
-- have room beside what runs and is ready; where it was taken away, all, 1,000 in one claim.
-- Users without a lease need no look: their ready job gets one.
create function gateway.free_behind_users(p_tenant int, p_tool text[], p_max_per_user int[])
returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    with freed as materialized (
        select j.id
          from unnest(p_tool, p_max_per_user) as t (tool, max_per_user)
         cross join lateral (
            select j.id from gateway.jobs j
             where j.tenant = p_tenant and j.tool = t.tool and j.state = 'behind-user'
             limit 1000
               for no key update skip locked) as j
         where t.max_per_user is null
    )
    update gateway.jobs j set state = 'ready'
     where j.tenant = p_tenant and j.id = any (array(select f.id from freed f));

    if not exists (select from unnest(p_max_per_user) as m (n) where m.n is not null) then
        return;
    end if;
    with below as materialized (
        select l.tool, l.on_behalf, t.max_per_user - count(*) as room
          from gateway.job_leases l
          join unnest(p_tool, p_max_per_user) as t (tool, max_per_user) on t.tool = l.tool
         where l.tenant = p_tenant and l.on_behalf is not null and t.max_per_user is not null
         group by l.tool, l.on_behalf, t.max_per_user
        having count(*) < t.max_per_user
    ), room as materialized (
        select b.tool, b.on_behalf, b.room - (
               select count(*) from (
                   select from gateway.jobs j
                    where j.tenant = p_tenant and j.tool = b.tool and j.on_behalf = b.on_behalf
                      and j.state = 'ready'
                    limit b.room) as j) as room
          from below b
         where exists (select from gateway.jobs j
                        where j.tenant = p_tenant and j.tool = b.tool and j.on_behalf = b.on_behalf
                          and j.state = 'behind-user'
                       offset 0)
    ), freed as materialized (
        select j.id
          from room r
         cross join lateral (
            select j.id from gateway.jobs j
             where j.tenant = p_tenant and j.tool = r.tool and j.on_behalf = r.on_behalf
               and j.state = 'behind-user'
             order by j.priority, j.run_at, j.seq limit r.room
               for no key update skip locked) as j
    )
    update gateway.jobs j set state = 'ready'
     where j.tenant = p_tenant and j.id = any (array(select f.id from freed f));
end
$$;

-- Of these ready jobs, which the caller has locked and did not lease, set behind what cannot run now.
-- Guard: a lock on the lease that is in the way (or on as many of its user's as the limit allows),
-- which its end must wait for. A lease that somebody is just ending is passed over, and so is the job.
create function gateway.set_behind(
    p_tenant int, p_job uuid[], p_tool text[], p_max_per_user int[]
) returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_entity    text[];
    v_tool      text[];
    v_on_behalf text[];
    v_free      text[];
begin
    select array_agg(distinct j.entity) into v_entity
      from gateway.jobs j
     where j.tenant = p_tenant and j.id = any (p_job) and j.state = 'ready';
    select array_agg(l.entity) into v_entity
      from (select l.entity from gateway.job_leases l
             where l.tenant = p_tenant and l.entity = any (v_entity)
               for key share skip locked) as l;
    with set_behind as (
        update gateway.jobs j set state = 'behind-entity'
         where j.tenant = p_tenant and j.id = any (p_job) and j.state = 'ready'
           and j.entity = any (v_entity)
        returning j.tool, j.on_behalf
    ), of_user as materialized (
        select s.tool, s.on_behalf, t.max_per_user
          from set_behind s
          join unnest(p_tool, p_max_per_user) as t (tool, max_per_user) on t.tool = s.tool
         where s.on_behalf is not null and t.max_per_user is not null
         group by s.tool, s.on_behalf, t.max_per_user
    )
    select array_agg(u.tool), array_agg(u.on_behalf) into v_tool, v_on_behalf
      from of_user u
     where u.max_per_user > (select count(*) from gateway.job_leases l
                              where l.tenant = p_tenant and l.tool = u.tool
                                and l.on_behalf = u.on_behalf);
    perform gateway.unblock(p_tenant, null, v_tool, v_on_behalf);

    select array_agg(j.tool), array_agg(j.on_behalf) into v_tool, v_on_behalf
      from (select j.tool, j.on_behalf
              from gateway.jobs j
              join unnest(p_tool, p_max_per_user) as t (tool, max_per_user) on t.tool = j.tool
             where j.tenant = p_tenant and j.id = any (p_job) and j.state = 'ready'
               and j.on_behalf is not null and t.max_per_user is not null
             group by j.tool, j.on_behalf) as j;
    if v_tool is null then
        return;
    end if;
    with held as materialized (
        select l.tool, l.on_behalf from gateway.job_leases l
         where l.tenant = p_tenant and l.tool = any (v_tool) and l.on_behalf = any (v_on_behalf)
           for key share skip locked
    ), at_limit as materialized (
        select h.tool, h.on_behalf
          from held h
          join unnest(p_tool, p_max_per_user) as t (tool, max_per_user) on t.tool = h.tool
         group by h.tool, h.on_behalf, t.max_per_user
        having count(*) >= t.max_per_user
    ), set_behind as (
        update gateway.jobs j set state = 'behind-user'
         where j.tenant = p_tenant and j.id = any (p_job) and j.state = 'ready'
           and exists (select from at_limit a
                        where a.tool = j.tool and a.on_behalf = j.on_behalf
                       offset 0)
        returning j.entity
    )
    select array_agg(distinct s.entity) into v_free
      from set_behind s
     where not exists (select from gateway.job_leases l
                        where l.tenant = p_tenant and l.entity = s.entity);
    perform gateway.unblock(p_tenant, v_free, null, null);
end
$$;

-- Renew a worker's leases, each named by (entity, job, fence).
-- Guard: that lease, not over once its row is locked, and never beyond its total_until. A lease that
-- was over when the lock came is refused, however early it was asked for.
-- Returns what remains, or why it is lost: taken (the entity has a newer lease) | cancelled | ended (by
-- an end of its own) | expired.
create function gateway.renew_leases(p_tenant int, p_entity text[], p_job uuid[], p_fence bigint[])
returns table (ord bigint, remaining_ms bigint, total_remaining_ms bigint, lost text)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now  timestamptz;
    v_last text[];  -- entities whose leases are these and are not over
begin
    perform 1 from gateway.job_leases l
      where l.tenant = p_tenant and l.entity = any (p_entity) and l.job = any (p_job)
      order by l.entity
        for no key update;
    v_now := gateway.clock();
    select array_agg(i.entity) into v_last
      from unnest(p_entity, p_job, p_fence) as i (entity, job, fence)
     cross join lateral (
        select l.job, l.fence, l.lease_until from gateway.job_leases l
         where l.tenant = p_tenant and l.entity = i.entity offset 0) as l
     where l.job = i.job and l.fence = i.fence and l.lease_until > v_now;
    update gateway.job_leases l
       set beat_at = v_now,
           lease_until = least(v_now + l.lease_ms * interval '1 millisecond', l.total_until)
     where l.tenant = p_tenant and l.entity = any (v_last);

    return query
    select i.ord,
           case when l.last then floor(extract(epoch from l.lease_until - v_now) * 1000)::bigint end,
           case when l.last then floor(extract(epoch from l.total_until - v_now) * 1000)::bigint end,
           case when l.last then null
                when r.how = 'cancelled' then 'cancelled'
                when l.fence > i.fence then 'taken'
                when r.how in ('completed', 'failed', 'handed-back') then 'ended'
                else 'expired' end
      from unnest(p_entity, p_job, p_fence) with ordinality as i (entity, job, fence, ord)
      left join lateral (
        select l.fence, l.lease_until, l.total_until,
               l.job = i.job and l.fence = i.fence and l.lease_until > v_now as last
          from gateway.job_leases l
         where l.tenant = p_tenant and l.entity = i.entity offset 0) as l on true
      left join lateral (
        select r.how from gateway.job_runs r
         where r.tenant = p_tenant and r.job = i.job and r.entity = i.entity and r.fence = i.fence
        offset 0) as r on l.last is not true;
end
$$;

-- Close leases: delete them, write their runs, move their jobs on, raise the counters.
-- Guard: the caller holds the row locks of the entities, leases and jobs and judged every one.
--
-- What becomes of the job: completed without p_stage: succeeded; with one: ready for it, or waiting
-- where p_wait. handed-back: queued, and the attempt does not count. failed where p_retry, and expired:
-- queued while attempts and give_up_at allow it, else failed. p_delay_ms: not before then.
-- Returns job, and what it became; mark: the entity's counter now.
create function gateway.close_leases(
    p_tenant int, p_now timestamptz, p_entity text[], p_job uuid[], p_fence bigint[], p_how text[],
    p_digest bytea[], p_result bytea[], p_error text[], p_delay_ms bigint[], p_retry boolean[], p_stage text[],
    p_stage_entity text[], p_wait boolean[]
) returns table (job uuid, state text)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_jobs      uuid[];
    v_states    text[];
    v_fences    bigint[];
    v_expired   boolean[];
    v_entity    text[];
    v_tool      text[];
    v_on_behalf text[];
begin
    with input as (
        select * from unnest(
            p_entity, p_job, p_fence, p_how, p_digest, p_result, p_error, p_delay_ms, p_retry, p_stage,
            p_stage_entity, p_wait
        ) as i (
            entity, job, fence, how, digest, result, error, delay_ms, retry, stage, stage_entity, wait)
    ), ended as (
        delete from gateway.job_leases l
         using input i
         where l.tenant = p_tenant and l.entity = any (p_entity) and l.entity = i.entity and l.job = i.job and l.fence = i.fence
        returning l.entity, l.job, l.fence, l.owner, l.granted_at, l.lease_until
    ), next as materialized (
        select j.*, e.fence, e.owner, e.granted_at, e.lease_until, i.how, i.digest, i.result, i.error,
               i.stage as next_stage, i.stage_entity,
               p_now + i.delay_ms * interval '1 millisecond' as next_run_at, i.delay_ms,
               case when i.how = 'completed' and i.stage is null then 'succeeded'
                    when i.how = 'completed' and i.wait then 'waiting'
                    when i.how = 'completed' then 'ready'
                    when i.how = 'cancelled' then 'cancelled'
                    when i.how <> 'handed-back' and (
                         j.attempts >= j.max_attempts or j.give_up_at <= p_now
                         or (i.how = 'failed' and i.retry is not true)) then 'failed'
                    when i.delay_ms > 0 then 'scheduled'
                    else 'ready' end as next_state
          from ended e
          join input i on i.job = e.job
         cross join lateral (
            select j.* from gateway.jobs j where j.tenant = p_tenant and j.id = e.job
            offset 0) as j
    ), runs as (
        insert into gateway.job_runs (
            tenant, job, fence, stage, stage_no, entity, owner, granted_at, ended_at, how, state,
            digest, result, error)
        select p_tenant, n.id, n.fence, n.stage, n.stage_no, n.entity, n.owner, n.granted_at,
               -- A lease that ran out ended then, whenever that is recorded.
               case when n.how = 'expired' then least(n.lease_until, p_now) else p_now end, n.how,
               n.next_state, n.digest, case when n.next_state <> 'succeeded' then n.result end, n.error
          from next n
    ), finished as (
        insert into gateway.job_history (
            tenant, id, key, tool, session, on_behalf, model, provider, stage, stage_no, entity,
            payload, previous, priority, created_at, attempts, finished_at, state, result, error)
        select n.tenant, n.id, n.key, n.tool, n.session, n.on_behalf, n.model, n.provider, n.stage,
               n.stage_no, n.entity, n.payload, n.previous, n.priority, n.created_at, n.attempts,
               p_now, n.next_state, n.result, n.error
          from next n
         where n.next_state in ('succeeded', 'failed', 'cancelled')
    ), gone as (
        delete from gateway.jobs j
         where j.tenant = p_tenant and j.id = any (array(
               select n.id from next n
                where n.next_state in ('succeeded', 'failed', 'cancelled')))
    ), kept as (
        update gateway.jobs j
           set state = n.next_state,
               run_at = case when n.how = 'completed' then p_now
                             when n.delay_ms > 0 then n.next_run_at else j.run_at end,
               attempts = case when n.how = 'completed' then 0
                               when n.how = 'handed-back' then j.attempts - 1
                               else j.attempts end,
               last_error = case when n.how = 'completed' then null
                                 else coalesce(n.error, j.last_error) end,
               stage = coalesce(n.next_stage, j.stage),
               stage_no = case when n.how = 'completed' then j.stage_no + 1 else j.stage_no end,
               entity = case when n.how = 'completed' then coalesce(n.stage_entity, 'job:' || j.id)
                             else j.entity end,
               previous = case when n.how = 'completed' then n.result else j.previous end
          from next n
         where j.tenant = p_tenant and j.id = any (p_job) and j.id = n.id
           and n.next_state not in ('succeeded', 'failed', 'cancelled')
    )
    select array_agg(n.id), array_agg(n.next_state), array_agg(n.fence),
           array_agg(n.how = 'expired'), array_agg(n.entity), array_agg(n.tool), array_agg(n.on_behalf)
      into v_jobs, v_states, v_fences, v_expired, v_entity, v_tool, v_on_behalf
      from next n;

    perform gateway.unblock(p_tenant, v_entity, v_tool, v_on_behalf);

    -- Every end raises the counter: until the next lease nobody's fence is good.
    update gateway.entities e set fence = e.fence + 1, held = 0, touched_at = p_now
     where e.tenant = p_tenant and e.entity = any (v_entity);

    insert into gateway.audit (
        tenant, id, at, event, entity, key, fence, high_water_mark, job, reason)
    select p_tenant, gateway.lease_audit_id(i.entity, i.job, i.fence, null, 'lease_expired'), p_now,
           'lease_expired', i.entity, k.key, i.fence, e.fence, i.job::text,
           format('the lease of %s, granted %s ms before, ran out; fence %s is stale from mark %s on; the job is %s',
                  r.owner, floor(extract(epoch from r.ended_at - r.granted_at) * 1000), i.fence, e.fence,
                  case when i.state in ('ready', 'scheduled') then 'queued' else i.state end)
      from unnest(v_jobs, v_states, v_fences, v_expired, v_entity) as i (job, state, fence, expired, entity)
      join gateway.entities e
        on e.tenant = p_tenant and e.entity = any (v_entity) and e.entity = i.entity
      join gateway.job_runs r
        on r.tenant = p_tenant and r.job = any (v_jobs) and r.job = i.job and r.entity = i.entity and r.fence = i.fence
      left join lateral (
            select j.key from gateway.jobs j where j.tenant = p_tenant and j.id = i.job
            union all
            select h.key from gateway.job_history h where h.tenant = p_tenant and h.id = i.job
            limit 1) as k on true
     where i.expired
        on conflict (tenant, id) do nothing;

    return query select * from unnest(v_jobs, v_states);
end
$$;

-- A worker ends leases: complete, fail or hand back, as p_how says; see gateway.close_leases.
-- Guard: the lease of (entity, job, fence), not over once the rows are locked.
-- Returns done | again (an earlier try of the very same end, by its digest), each with what the job
-- became by it; else why not: taken | cancelled | ended (otherwise, by an earlier end) | expired. A
-- result that came too late is never published; its digest, size and delay go to the audit.
create function gateway.end_leases(
    p_tenant int, p_principal text, p_entity text[], p_job uuid[], p_fence bigint[], p_how text[],
    p_digest bytea[], p_result bytea[], p_error text[], p_delay_ms bigint[], p_retry boolean[], p_stage text[],
    p_stage_entity text[], p_wait boolean[]
) returns table (ord bigint, answer text, state text)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now  timestamptz;
    v_done bigint[];
begin
    perform 1 from gateway.entities e
      where e.tenant = p_tenant and e.entity = any (p_entity)
      order by e.entity
        for no key update;
    perform 1
       from gateway.job_leases l
      where l.tenant = p_tenant and l.entity = any (p_entity) and l.job = any (p_job)
      order by l.entity
        for update;
    perform 1 from gateway.jobs j
      where j.tenant = p_tenant and j.id = any (p_job)
      order by j.id
        for update;
    v_now := gateway.clock();

    select coalesce(array_agg(i.ord), '{}') into v_done
      from unnest(p_entity, p_job, p_fence) with ordinality as i (entity, job, fence, ord)
     cross join lateral (
        select l.job, l.fence, l.lease_until from gateway.job_leases l
         where l.tenant = p_tenant and l.entity = i.entity
        offset 0) as l
     where l.job = i.job and l.fence = i.fence and l.lease_until > v_now;
    perform gateway.close_leases(
               p_tenant, v_now, array_agg(i.entity), array_agg(i.job), array_agg(i.fence),
               array_agg(i.how), array_agg(i.digest), array_agg(i.result), array_agg(i.error), array_agg(i.delay_ms),
               array_agg(i.retry), array_agg(i.stage), array_agg(i.stage_entity), array_agg(i.wait))
       from unnest(
            p_entity, p_job, p_fence, p_how, p_digest, p_result, p_error, p_delay_ms, p_retry, p_stage,
            p_stage_entity, p_wait
       ) with ordinality as i (
            entity, job, fence, how, digest, result, error, delay_ms, retry, stage, stage_entity, wait, ord)
      where i.ord = any (v_done)
     having count(*) > 0;

    return query
    with judged as materialized (
        select i.*, r.state as run_state,
               case when i.ord = any (v_done) then 'done'
                    when r.digest = i.digest and r.how = i.how then 'again'
                    when r.how = 'cancelled' then 'cancelled'
                    when l.fence > i.fence then 'taken'
                    when r.how in ('completed', 'failed', 'handed-back') then 'ended'
                    else 'expired' end as answer,
               coalesce(j.key, h.key) as key, coalesce(r.ended_at, l.lease_until) as ended_at
          from unnest(p_entity, p_job, p_fence, p_how, p_digest, p_result, p_error)
               with ordinality as i (entity, job, fence, how, digest, result, error, ord)
          left join lateral (
            select r.* from gateway.job_runs r
             where r.tenant = p_tenant and r.job = i.job and r.entity = i.entity
               and r.fence = i.fence
            offset 0) as r on true
          left join lateral (
            select j.key from gateway.jobs j where j.tenant = p_tenant and j.id = i.job
            offset 0) as j on i.ord <> all (v_done)
          left join lateral (
            select h.key from gateway.job_history h where h.tenant = p_tenant and h.id = i.job
            offset 0) as h on i.ord <> all (v_done)
          left join lateral (
            select l.fence, l.lease_until from gateway.job_leases l
             where l.tenant = p_tenant and l.entity = i.entity
            offset 0) as l on i.ord <> all (v_done)
    ), rejected as (
        insert into gateway.audit (
            tenant, id, at, event, principal, entity, key, fence, high_water_mark, job, reason)
        select p_tenant,
               gateway.lease_audit_id(o.entity, o.job, o.fence, o.digest, 'result_rejected'), v_now,
               'result_rejected', p_principal, o.entity, o.key, o.fence, e.fence, o.job::text,
               format('%s with %s bytes, SHA-256 %s, %s: the lease was over (%s)', o.how,
                      octet_length(coalesce(o.result, convert_to(o.error, 'UTF8'))),
                      encode(sha256(coalesce(o.result, convert_to(o.error, 'UTF8'))), 'hex'),
                      coalesce(floor(extract(epoch from v_now - o.ended_at) * 1000) || ' ms late',
                               'after no lease that is on record'), o.answer)
          from judged o
          left join lateral (
            select e.fence from gateway.entities e
             where e.tenant = p_tenant and e.entity = o.entity
            offset 0) as e on true
         where o.answer not in ('done', 'again') and o.how <> 'handed-back'
            on conflict (tenant, id) do nothing
    )
    select o.ord, o.answer, case when o.answer in ('done', 'again') then o.run_state end
      from judged o;
end
$$;

-- Leases that are over, at most p_limit. It decides nothing; it takes locks only to pass over what
-- somebody else holds, which would otherwise hide the rest behind p_limit. In no order: what cannot be
-- reaped for another reason must not always come first.
create function gateway.expired_leases(p_limit int)
returns table (
    tenant int, entity text, job uuid, fence bigint, tool text, attempts int, over_ms bigint
)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := gateway.clock();
begin
    return query
    with past as materialized (
        select l.tenant, l.entity, l.job, l.fence, l.tool, l.lease_until
          from (select l.* from gateway.job_leases l
                 where l.lease_until <= v_now
                 order by l.tenant, l.entity  -- by the index, not by all that the table's pages hold
                offset 0) as l
         order by random()
    )
    select p.tenant, p.entity, p.job, p.fence, p.tool, j.attempts,
           floor(extract(epoch from v_now - p.lease_until) * 1000)::bigint
      from past p
     cross join lateral (
        select from gateway.entities e where e.tenant = p.tenant and e.entity = p.entity
           for no key update skip locked) as e
     cross join lateral (
        select from gateway.job_leases l where l.tenant = p.tenant and l.entity = p.entity
           for update skip locked) as l
     cross join lateral (
        select j.attempts from gateway.jobs j where j.tenant = p.tenant and j.id = p.job
           for update skip locked) as j
     limit p_limit;
end
$$;

-- Record the ends of leases that are over: the counter is raised, the job queued again (not before
-- p_delay_ms) or failed, one audit row each.
-- Guard: the lease of (entity, job, fence), over once its rows are locked. What another transaction has locked
-- is left for the next time, so that one stuck row stops nobody.
create function gateway.reap_leases(
    p_tenant int, p_entity text[], p_job uuid[], p_fence bigint[], p_delay_ms bigint[]
) returns table (job uuid, fence bigint, state text)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now    timestamptz;
    v_job    uuid[];
    v_entity text[];
begin
    select array_agg(e.entity) into v_entity
      from (select e.entity from gateway.entities e
             where e.tenant = p_tenant and e.entity = any (p_entity)
             order by e.entity
               for no key update skip locked) as e;
    select array_agg(l.entity), array_agg(l.job) into v_entity, v_job
      from (select l.entity, l.job from gateway.job_leases l
             where l.tenant = p_tenant and l.entity = any (v_entity) and l.job = any (p_job)
             order by l.entity
               for update skip locked) as l;
    select array_agg(j.id) into v_job
      from (select j.id from gateway.jobs j
             where j.tenant = p_tenant and j.id = any (v_job)
             order by j.id
               for update skip locked) as j;
    v_now := gateway.clock();
    select array_agg(l.job) into v_job
      from gateway.job_leases l
      join unnest(p_entity, p_job, p_fence) as i (entity, job, fence)
        on i.entity = l.entity and i.job = l.job and i.fence = l.fence
     where l.tenant = p_tenant and l.entity = any (v_entity) and l.job = any (v_job)
       and l.lease_until <= v_now;
    if v_job is null then
        return;
    end if;

    return query
    with input as (
        select i.*
          from unnest(p_entity, p_job, p_fence, p_delay_ms) as i (entity, job, fence, delay_ms)
         where i.job = any (v_job)
    )
    select i.job, i.fence, c.state
      from (select array_agg(i.entity) as entity, array_agg(i.job) as job, array_agg(i.fence) as fence,
                   array_agg('expired'::text) as how, array_agg(null::bytea) as none,
                   array_agg('the lease ran out'::text) as error, array_agg(i.delay_ms) as delay_ms,
                   array_agg(true) as yes, array_agg(null::text) as no_text
              from input i) as a
     cross join lateral gateway.close_leases(
            p_tenant, v_now, a.entity, a.job, a.fence, a.how, a.none, a.none, a.error, a.delay_ms, a.yes,
            a.no_text, a.no_text, a.yes) as c
      join input i on i.job = c.job;
end
$$;

-- Give up what is past its give_up_at and has no lease, at most p_limit jobs of all tenants.
-- Guard: judged under their row locks; what is locked is left for the next time.
create function gateway.give_up_overdue(p_limit int) returns table (tenant int, job uuid)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := gateway.clock();
    v_tenant int[];
    v_job    uuid[];
begin
    select array_agg(d.tenant), array_agg(d.id) into v_tenant, v_job
      from (select j.tenant, j.id from gateway.jobs j
             where j.give_up_at is not null and j.give_up_at <= v_now and j.state <> 'running'
             order by j.give_up_at
             limit p_limit
               for update skip locked) as d;
    perform gateway.give_up(i.tenant, array_agg(i.job))
       from unnest(v_tenant, v_job) as i (tenant, job)
      group by i.tenant
      order by i.tenant;
    return query select * from unnest(v_tenant, v_job);
end
$$;

-- An operator cancels one job. A lease on it ends at once; its worker hears of it at its next beat.
-- Returns cancelled | finished (state says as what) | missing.
create function gateway.cancel_job(p_tenant int, p_job uuid, p_principal text, p_reason text)
returns table (answer text, state text)
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_now   timestamptz;
    v_seen  gateway.jobs;
    v_job   gateway.jobs;
    v_fence bigint;
begin
    -- Its entity and lease come before it in the order of locks, where it has a lease. Where it got
    -- one, or another, between the look and the lock, the order cannot be kept: a deadlock is possible
    -- then, and repeated.
    loop
        select * into v_seen from gateway.jobs j where j.tenant = p_tenant and j.id = p_job;
        if v_seen.state = 'running' then
            perform 1 from gateway.entities e
              where e.tenant = p_tenant and e.entity = v_seen.entity
                for no key update;
            perform 1 from gateway.job_leases l
              where l.tenant = p_tenant and l.entity = v_seen.entity and l.job = p_job
                for update;
        end if;
        select * into v_job from gateway.jobs j
         where j.tenant = p_tenant and j.id = p_job
           for update;
        exit when not found or v_job.state <> 'running'
               or (v_seen.state = 'running' and v_seen.entity = v_job.entity);
    end loop;
    if v_job.id is null then
        return query
        select 'finished', h.state from gateway.job_history h
         where h.tenant = p_tenant and h.id = p_job;
        if not found then
            return query select 'missing', null::text;
        end if;
        return;
    end if;
    select l.fence into v_fence from gateway.job_leases l
     where l.tenant = p_tenant and l.entity = v_job.entity and l.job = p_job;
    v_now := gateway.clock();

    if v_job.state = 'running' then
        perform gateway.close_leases(
            p_tenant, v_now, array[v_job.entity], array[p_job], array[v_fence], array['cancelled'], array[null::bytea],
            array[null::bytea], array[p_reason], array[0::bigint], array[false], array[null::text],
            array[null::text], array[false]);
    else
        delete from gateway.jobs j where j.tenant = p_tenant and j.id = p_job;
        insert into gateway.job_history (
            tenant, id, key, tool, session, on_behalf, model, provider, stage, stage_no, entity,
            payload, previous, priority, created_at, attempts, finished_at, state, error)
        values (
            p_tenant, p_job, v_job.key, v_job.tool, v_job.session, v_job.on_behalf, v_job.model,
            v_job.provider, v_job.stage, v_job.stage_no, v_job.entity, v_job.payload, v_job.previous,
            v_job.priority, v_job.created_at, v_job.attempts, v_now, 'cancelled', p_reason);
        if v_job.state = 'ready' then
            perform gateway.unblock(
                p_tenant, array[v_job.entity], array[v_job.tool], array[v_job.on_behalf]);
        end if;
    end if;
    insert into gateway.audit (tenant, id, at, event, principal, entity, key, fence, job, reason)
    values (p_tenant, gen_random_uuid(), v_now, 'operator', p_principal, v_job.entity, v_job.key,
            v_fence, p_job::text, 'job cancelled: ' || p_reason);
    return query select 'cancelled', 'cancelled';
end
$$;

-- A person lets a waiting stage run. Guard: it waits. Returns whether it did.
create function gateway.approve_job(p_tenant int, p_job uuid, p_principal text, p_reason text)
returns boolean
language plpgsql
set enable_seqscan = off
as $$
declare
    v_now timestamptz;
    v_job gateway.jobs;
begin
    update gateway.jobs j set state = 'ready'
     where j.tenant = p_tenant and j.id = p_job and j.state = 'waiting'
    returning * into v_job;
    if not found then
        return false;
    end if;
    v_now := gateway.clock();
    insert into gateway.audit (tenant, id, at, event, principal, entity, key, job, reason)
    values (p_tenant, gen_random_uuid(), v_now, 'operator', p_principal, v_job.entity, v_job.key,
            p_job::text, format('stage %s approved: %s', coalesce(v_job.stage, v_job.stage_no::text), p_reason));
    return true;
end
$$;

-- An operator runs a failed or cancelled job again, under its id and key, from the stage it had come
-- to, with fresh attempts and no give_up_at.
-- Guard: it is in the history as such. Returns whether it was.
create function gateway.retry_job(p_tenant int, p_job uuid, p_principal text, p_reason text)
returns boolean
language plpgsql
set enable_seqscan = off
as $$
declare
    v_now timestamptz := gateway.clock();
    v_job gateway.job_history;
begin
    delete from gateway.job_history h
     where h.tenant = p_tenant and h.id = p_job and h.state in ('failed', 'cancelled')
    returning * into v_job;
    if not found then
        return false;
    end if;
    insert into gateway.jobs (
        tenant, id, key, tool, session, on_behalf, model, provider, stage, stage_no, entity, payload,
        previous, priority, run_at, created_at, state, last_error)
    values (
        p_tenant, p_job, v_job.key, v_job.tool, v_job.session, v_job.on_behalf, v_job.model,
        v_job.provider, v_job.stage, v_job.stage_no, v_job.entity, v_job.payload, v_job.previous,
        v_job.priority, v_now, v_job.created_at, 'ready', v_job.error);
    insert into gateway.audit (tenant, id, at, event, principal, entity, key, job, reason)
    values (p_tenant, gen_random_uuid(), v_now, 'operator', p_principal, v_job.entity, v_job.key,
            p_job::text, format('%s job queued again: %s', v_job.state, p_reason));
    return true;
end
$$;
