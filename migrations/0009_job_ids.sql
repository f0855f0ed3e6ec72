-- Callers of the HTTP route choose ids. One that names a job with another key is refused: of a
-- finished job nothing else would, and it could never be moved to the history again.

-- Enqueue. Usable inside any transaction of the caller's.
-- Guard: a job is inserted only where its key is new. For a known key the first job comes back with
-- what became of it; same: tool and payload are equal. A repeated call with the same ids finds its own.
-- Fails with unique_violation where an id is that of a job with another key.
-- Of a key whose job is in neither table any more nothing can be said, so its state is `forgotten`, and
-- same is false: nobody knows what it wished.
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
                    false),
           coalesce(j.state, h.state, 'forgotten'), h.result, coalesce(h.error, j.last_error)
      from unnest(p_key, p_tool, p_payload) with ordinality as i (key, tool, payload, ord)
      join gateway.job_keys k on k.tenant = p_tenant and k.key = any (p_key) and k.key = i.key
      left join gateway.jobs j on j.tenant = p_tenant and j.id = k.job
      left join gateway.job_history h on h.tenant = p_tenant and h.id = k.job;
end
$$;
