-- Retention: what is old enough is forgotten, in chunks of p_limit rows, each well below the statement
-- limit of 2 s. Nothing here waits for a lock: what others have locked is left for the next round.
-- Safe beside itself and beside everything else; every delete carries its guard again behind its lock.
--
-- What is in flight or unknown never expires: only a settle sets expires_at. An entity is forgotten
-- only where it has no open slot, no lease, no unfinished job and no unsettled command. The last two
-- have no index by entity, which would cost every settle and every claim; instead each round first
-- *touches* the entities of unsettled commands and of unfinished jobs, and then forgets only what nobody
-- has touched for p_days and one day more: whoever uses an entity touches it once a day at most. Where
-- an entity could not be touched because others had it locked, the round forgets none.

-- One row: the round that runs now, and the longest key_days that any process ever served with. A mark
-- is remembered for as long as a key may be, and of policies that were taken away keys may remain, so
-- that number only rises.
create table gateway.retention (
    id               boolean not null default true constraint retention_pkey primary key
                         constraint retention_id_check check (id),
    longest_key_days int not null default 0 constraint retention_days_check check (longest_key_days >= 0),
    holder           uuid,
    held_until       timestamptz,
    finished_at      timestamptz
);
insert into gateway.retention default values;

-- The key of a finished job outlives the job: what it was and what became of it. All null while the
-- job is unfinished or in the history. digest: of tool and payload, so that another job is told apart.
alter table gateway.job_keys
    add column finished_at timestamptz,
    add column state text,
    add column digest bytea,
    add constraint job_keys_finished_check check (num_nulls(finished_at, state, digest) in (0, 3)) not valid;
create index job_keys_finished_idx on gateway.job_keys (finished_at) where finished_at is not null;

create function gateway.job_digest(tool text, payload bytea) returns bytea
    language sql immutable
    return sha256(convert_to(tool, 'UTF8') || '\x00'::bytea || payload);

-- Enqueue, as before (see 0009), but the key of a forgotten job says what became of it, in the same
-- snapshot in which the job is looked for. By the key as well: a forgotten job's id may be taken again,
-- and the job that has it now is none of the old key's. `forgotten` is left for a key of which nothing
-- is known. Also fails with serialization_failure where a key is forgotten just then: repeat it.
create or replace function gateway.enqueue_jobs(
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
    v_now  timestamptz := gateway.clock();  -- nothing is judged by it but what is due at once
    v_told int;
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

    -- Behind the insert: from here on nobody moves a job with this id from one table to the other.
    if exists (
        select from unnest(p_id, p_key) as i (id, key)
         cross join lateral (
            select from gateway.job_history h
             where h.tenant = p_tenant and h.id = i.id and h.key <> i.key offset 0) as h
    ) then
        raise exception 'an id is that of a job with another key'
            using errcode = 'unique_violation', hint = 'Take a new uuid, or that key.';
    end if;

    -- A fresh snapshot: the first job of a key may have been committed meanwhile.
    return query
    select i.ord, k.job,
           coalesce(i.tool = coalesce(j.tool, h.tool) and i.payload = coalesce(j.payload, h.payload),
                    k.digest = gateway.job_digest(i.tool, i.payload), false),
           coalesce(j.state, h.state, k.state, 'forgotten'), h.result, coalesce(h.error, j.last_error)
      from unnest(p_key, p_tool, p_payload) with ordinality as i (key, tool, payload, ord)
      join gateway.job_keys k on k.tenant = p_tenant and k.key = any (p_key) and k.key = i.key
      left join gateway.jobs j on j.tenant = p_tenant and j.id = k.job and j.key = k.key
      left join gateway.job_history h on h.tenant = p_tenant and h.id = k.job and h.key = k.key;

    get diagnostics v_told = row_count;
    if v_told < cardinality(p_key) then
        raise exception 'a key was forgotten while it was looked for'
            using errcode = 'serialization_failure', hint = 'Repeat the statement.';
    end if;
end
$$;

-- Take the round. It is held so that processes do not do each other's work twice, not for safety.
-- Guard: nobody holds it, and the last one ended p_every_s ago. No row: not now.
create function gateway.begin_retention(p_holder uuid, p_key_days int, p_every_s int, p_hold_s int)
returns table (longest_key_days int)
language plpgsql
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
begin
    update gateway.retention set longest_key_days = p_key_days
     where id and longest_key_days < p_key_days;
    perform 1 from gateway.retention where id for update;
    v_now := gateway.clock();
    return query
    update gateway.retention
       set holder = p_holder, held_until = v_now + make_interval(secs => p_hold_s)
     where id and (held_until is null or held_until <= v_now)
       and (finished_at is null or finished_at <= v_now - make_interval(secs => p_every_s)
            or finished_at > v_now)
    returning longest_key_days;
end
$$;

-- Hold the round on, or end it. Guard: it is still the caller's. No row: it is not.
create function gateway.hold_retention(p_holder uuid, p_hold_s int, p_over boolean)
returns table (longest_key_days int)
language sql
as $$
    update gateway.retention
       set holder = case when not p_over then holder end,
           held_until = case when not p_over then gateway.clock() + make_interval(secs => p_hold_s) end,
           finished_at = case when p_over then gateway.clock() else finished_at end
     where id and holder = p_holder
    returning longest_key_days;
$$;

-- Whether one of these entities was last touched before p_before.
create function gateway.is_untouched(p_tenant int[], p_entity text[], p_before timestamptz)
returns boolean
language plpgsql stable
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    return exists (
        select from unnest(p_tenant, p_entity) as i (tenant, entity)
          join gateway.entities e on e.tenant = i.tenant and e.entity = i.entity
         where e.touched_at < p_before);
end
$$;

-- Commands, by admission from a known place on: the body, fields and evidence of what was settled
-- response_days ago, and whole rows whose key has expired.
-- Guard: settled, and past that date by the clock behind the lock.
-- Returns what was done, the last row that was looked at (null: the end is reached), and whether an
-- entity of an unsettled one could not be touched (missed).
create function gateway.forget_commands(
    p_after timestamptz, p_after_tenant int, p_after_digest bytea, p_limit int
) returns table (
    bodies bigint, keys bigint, last_at timestamptz, last_tenant int, last_digest bytea,
    missed boolean)
language plpgsql
-- In the order of the index, whatever the planner thinks of a table without statistics.
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := gateway.clock();
    v_at     timestamptz[];
    v_tenant int[];
    v_digest bytea[];
    v_open   boolean[];
    v_entity text[];
    v_bodies bigint;
    v_keys   bigint;
    v_missed boolean;
begin
    select array_agg(p.admitted_at), array_agg(p.tenant), array_agg(p.key_digest),
           array_agg(p.settled_at is null), array_agg(p.entity)
      into v_at, v_tenant, v_digest, v_open, v_entity
      from (
        select c.admitted_at, c.tenant, c.key_digest, c.settled_at, c.entity
          from gateway.commands c
         where c.admitted_at >= p_after and c.admitted_at <= v_now
           and (c.admitted_at, c.tenant, c.key_digest) > (p_after, p_after_tenant, p_after_digest)
         order by c.admitted_at, c.tenant, c.key_digest
         limit p_limit
      ) p;

    -- Entities first, as everywhere.
    update gateway.entities e
       set touched_at = v_now
      from (
        select e.tenant, e.entity
          from unnest(v_tenant, v_entity, v_open) as i (tenant, entity, open)
          join gateway.entities e on e.tenant = i.tenant and e.entity = i.entity
         where i.open and e.touched_at < v_now - interval '1 day'
           for no key update of e skip locked
      ) t
     where e.tenant = t.tenant and e.entity = t.entity;
    v_missed := gateway.is_untouched(
        array(select i.tenant from unnest(v_tenant, v_open) as i (tenant, open) where i.open),
        array(select i.entity from unnest(v_entity, v_open) as i (entity, open) where i.open),
        v_now - interval '1 day');

    delete from gateway.commands c
     using (
        select c.tenant, c.key_digest
          from unnest(v_tenant, v_digest, v_open) as i (tenant, key_digest, open)
          join gateway.commands c on c.tenant = i.tenant and c.key_digest = i.key_digest
         where not i.open and c.settled_at is not null and c.expires_at <= v_now
           for update of c skip locked
     ) d
     where c.tenant = d.tenant and c.key_digest = d.key_digest;
    get diagnostics v_keys = row_count;

    update gateway.commands c
       set headers = null, body = null, evidence = null, probe_target = null
      from (
        select c.tenant, c.key_digest
          from unnest(v_tenant, v_digest, v_open) as i (tenant, key_digest, open)
          join gateway.commands c on c.tenant = i.tenant and c.key_digest = i.key_digest
         where not i.open and c.settled_at is not null
           and c.settled_at + make_interval(days => c.response_days) <= v_now
           and num_nonnulls(c.headers, c.body, c.evidence, c.probe_target) > 0
           for no key update of c skip locked
      ) d
     where c.tenant = d.tenant and c.key_digest = d.key_digest;
    get diagnostics v_bodies = row_count;

    return query select v_bodies, v_keys,
                        v_at[array_upper(v_at, 1)], v_tenant[array_upper(v_at, 1)],
                        v_digest[array_upper(v_at, 1)], v_missed;
end
$$;

-- Audit rows of p_days ago, of each tenant the oldest first. Returns how many went.
create function gateway.forget_audit(p_days int, p_limit int) returns bigint
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
    delete from gateway.audit a
     using (
        select o.tenant, o.id
          from gateway.tenants t
         cross join lateral (
            select a.tenant, a.id
              from gateway.audit a
             where a.tenant = t.tenant and a.at <= v_now - make_interval(days => p_days)
             order by a.at
             limit p_limit
               for update skip locked
         ) o
         limit p_limit
     ) d
     where a.tenant = d.tenant and a.id = d.id;
    get diagnostics v_gone = row_count;
    return v_gone;
end
$$;

-- Finished jobs of p_days ago with their runs, the oldest first; their keys stay, and learn what
-- became of them. Returns how many went.
create function gateway.forget_jobs(p_days int, p_limit int) returns bigint
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
    with old as (
        select h.tenant, h.id
          from gateway.job_history h
         where h.finished_at <= v_now - make_interval(days => p_days)
         order by h.finished_at
         limit p_limit
           for update skip locked
    ), gone as (
        delete from gateway.job_history h
         using old o
         where h.tenant = o.tenant and h.id = o.id
        returning h.tenant, h.id, h.key, h.tool, h.payload, h.state, h.finished_at
    ), runs as (
        delete from gateway.job_runs r
         using gone g
         where r.tenant = g.tenant and r.job = g.id
    ), kept as (
        update gateway.job_keys k
           set finished_at = g.finished_at, state = g.state,
               digest = gateway.job_digest(g.tool, g.payload)
          from gone g
         where k.tenant = g.tenant and k.key = g.key and k.job = g.id
    )
    select count(*) into v_gone from gone;
    return v_gone;
end
$$;

-- Keys of jobs that finished p_days ago and are out of the history. Returns how many went.
create function gateway.forget_job_keys(p_days int, p_limit int) returns bigint
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
    delete from gateway.job_keys k
     using (
        select o.tenant, o.key
          from gateway.job_keys o
         where o.finished_at is not null
           and o.finished_at <= v_now - make_interval(days => p_days)
         order by o.finished_at
         limit p_limit
           for update skip locked
     ) d
     where k.tenant = d.tenant and k.key = d.key;
    get diagnostics v_gone = row_count;
    return v_gone;
end
$$;

-- What is watched and decided (settled, or gone), from a known command on, where nobody has asked about
-- it for a day. The prober itself lets go of what it takes; this is for policies that no process serves
-- any more. A day, because what is asked about at all is so every hour at least (interval_s). What is
-- unsettled stays on the list, since its policy may be served again.
-- Guard: so long due, and no unsettled command, read behind the row's lock.
-- Returns the last one that was looked at (null: the end is reached).
create function gateway.forget_watched(p_after_tenant int, p_after_digest bytea, p_limit int)
returns table (last_tenant int, last_digest bytea)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := gateway.clock();
    v_tenant int[];
    v_digest bytea[];
    v_last_t int;
    v_last_d bytea;
begin
    select array_agg(p.tenant), array_agg(p.key_digest) into v_tenant, v_digest
      from (
        select w.tenant, w.key_digest
          from gateway.watched w
         where (w.tenant, w.key_digest) > (p_after_tenant, p_after_digest)
         order by w.tenant, w.key_digest
         limit p_limit
      ) p;
    v_last_t := v_tenant[array_upper(v_tenant, 1)];
    v_last_d := v_digest[array_upper(v_digest, 1)];

    select array_agg(l.tenant), array_agg(l.key_digest) into v_tenant, v_digest
      from (
        select w.tenant, w.key_digest
          from unnest(v_tenant, v_digest) as i (tenant, key_digest)
          join gateway.watched w on w.tenant = i.tenant and w.key_digest = i.key_digest
         where w.due_at <= v_now - interval '1 day'
           for update of w skip locked
      ) l;

    delete from gateway.watched w
     using unnest(v_tenant, v_digest) as i (tenant, key_digest)
      left join gateway.commands c
        on c.tenant = i.tenant and c.key_digest = i.key_digest and c.settled_at is null
     where w.tenant = i.tenant and w.key_digest = i.key_digest and c.attempt is null;
    return query select v_last_t, v_last_d;
end
$$;

-- Touch the entities of unfinished jobs, from a known job on; see above.
-- Returns the last job that was looked at (null: the end is reached), and whether an entity could not be
-- touched (missed).
create function gateway.touch_job_entities(p_after_tenant int, p_after_job uuid, p_limit int)
returns table (last_tenant int, last_job uuid, missed boolean)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now    timestamptz := gateway.clock();
    v_tenant int[];
    v_job    uuid[];
    v_entity text[];
begin
    select array_agg(p.tenant), array_agg(p.id), array_agg(p.entity)
      into v_tenant, v_job, v_entity
      from (
        select j.tenant, j.id, j.entity
          from gateway.jobs j
         where (j.tenant, j.id) > (p_after_tenant, p_after_job)
         order by j.tenant, j.id
         limit p_limit
      ) p;
    update gateway.entities e
       set touched_at = v_now
      from (
        select e.tenant, e.entity
          from unnest(v_tenant, v_entity) as i (tenant, entity)
          join gateway.entities e on e.tenant = i.tenant and e.entity = i.entity
         where e.touched_at < v_now - interval '1 day'
           for no key update of e skip locked
      ) t
     where e.tenant = t.tenant and e.entity = t.entity;
    return query select v_tenant[array_upper(v_tenant, 1)], v_job[array_upper(v_job, 1)],
                        gateway.is_untouched(v_tenant, v_entity, v_now - interval '1 day');
end
$$;

-- Entities that nobody has touched for p_days and a day, from a known one on. The day more: what was
-- admitted less than a day after the last touch did not touch. Only behind a whole pass of
-- forget_commands and of touch_job_entities in the same round, neither of which missed any.
-- Guard: untouched, no open slot and no lease, judged under the row's lock.
create function gateway.forget_entities(
    p_after_tenant int, p_after_entity text, p_days int, p_limit int
) returns table (entities bigint, last_tenant int, last_entity text)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_idle   interval := make_interval(days => p_days + 1);
    v_now    timestamptz;
    v_tenant int[];
    v_entity text[];
    v_last_t int;
    v_last_e text;
    v_gone   bigint;
begin
    select array_agg(p.tenant), array_agg(p.entity collate "C")
      into v_tenant, v_entity
      from (
        select e.tenant, e.entity
          from gateway.entities e
         where (e.tenant, e.entity) > (p_after_tenant, p_after_entity collate "C")
         order by e.tenant, e.entity
         limit p_limit
      ) p;
    v_last_t := v_tenant[array_upper(v_tenant, 1)];
    v_last_e := v_entity[array_upper(v_entity, 1)];

    select array_agg(l.tenant), array_agg(l.entity)
      into v_tenant, v_entity
      from (
        select e.tenant, e.entity
          from unnest(v_tenant, v_entity) as i (tenant, entity)
          join gateway.entities e on e.tenant = i.tenant and e.entity = i.entity
         where e.open_key is null
           and e.touched_at <= gateway.clock() - v_idle
           for update of e skip locked
      ) l;
    v_now := gateway.clock();

    delete from gateway.entities e
     using unnest(v_tenant, v_entity) as i (tenant, entity)
     where e.tenant = i.tenant and e.entity = i.entity
       and e.open_key is null and e.touched_at <= v_now - v_idle
       and not exists (
           select from gateway.job_leases l
            where l.tenant = e.tenant and l.entity = e.entity);
    get diagnostics v_gone = row_count;
    return query select v_gone, v_last_t, v_last_e;
end
$$;

-- An operator has what is kept of one answer erased: body, fields and the evidence of a response.
-- Digests, status and audit stay, so the key goes on protecting. Repeating it changes nothing.
-- Guard: settled. What is unsettled may still be answered, or its evidence be needed to decide it.
-- Returns: erased | already | missing | unsettled.
create function gateway.erase(
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

-- Issue a fence, as before (see 0005), but an entity that is forgotten between its look-up and its lock
-- is made again.
create or replace function gateway.issue_fence(p_tenant int, p_entity text)
returns table (fence bigint, job uuid, remaining_ms bigint)
language plpgsql
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_now   timestamptz;
    v_lease gateway.job_leases;
begin
    loop
        insert into gateway.entities (tenant, entity, touched_at)
        values (p_tenant, p_entity, gateway.clock())
            on conflict (tenant, entity) do nothing;
        perform 1 from gateway.entities e
          where e.tenant = p_tenant and e.entity = p_entity
            for no key update;
        exit when found;
    end loop;
    v_now := gateway.clock();

    select * into v_lease from gateway.job_leases l
     where l.tenant = p_tenant and l.entity = p_entity;
    if found then
        return query select null::bigint, v_lease.job,
                            (extract(epoch from v_lease.lease_until - v_now) * 1000)::bigint;
        return;
    end if;

    return query
    update gateway.entities e
       set fence = gateway.next_fence(e.fence, e.held), held = gateway.next_fence(e.fence, e.held),
           touched_at = v_now
     where e.tenant = p_tenant and e.entity = p_entity
    returning e.fence, null::uuid, null::bigint;
end
$$;
