-- Claims and ends at speed. Every function keeps its signature, so that the release before runs beside
-- them; one that is written anew by a later migration has to say again what is set here.

-- One plan for each statement, made once on each connection: they look up by key, whatever the values
-- are, and planning them anew was half of the time of a claim or an end.
do $$
declare
    v_function regprocedure;
begin
    for v_function in
        select p.oid::regprocedure from pg_proc p
         where p.pronamespace = 'gateway'::regnamespace
           and p.proname in ('enqueue_jobs', 'claim_jobs', 'leases_of', 'free_behind_users', 'set_behind',
                             'unblock', 'renew_leases', 'end_leases', 'close_leases')
    loop
        execute format('alter function %s set plan_cache_mode = force_generic_plan', v_function);
    end loop;

    -- What these join by anything but a key they hash. A batch of ends compared each of its ends with
    -- each other, and a claim each of its jobs with every lease that there was. Look-ups by key stay as
    -- they are: each is a lateral of its own, for which there is no other way.
    for v_function in
        select p.oid::regprocedure from pg_proc p
         where p.pronamespace = 'gateway'::regnamespace and p.proname in ('claim_jobs', 'close_leases')
    loop
        execute format('alter function %s set enable_hashjoin = on', v_function);
        execute format('alter function %s set enable_nestloop = off', v_function);
    end loop;

    -- And what they call is planned as before.
    for v_function in
        select p.oid::regprocedure from pg_proc p
         where p.pronamespace = 'gateway'::regnamespace
           and p.proname in ('leases_of', 'free_behind_users', 'set_behind', 'unblock', 'give_up')
    loop
        execute format('alter function %s set enable_nestloop = on', v_function);
    end loop;
end
$$;

-- Make the rows of entities that have none, as before (see 0007). New: each is looked up by its key.
-- Where statistics were old, all entities of the tenant were read for each that was asked for.
create or replace function gateway.make_entities(p_tenant int, p_entity text[]) returns void
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
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
                        where e.tenant = p_tenant and e.entity = i.entity
                       offset 0);
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
