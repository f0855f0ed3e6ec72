-- name: begin
-- guard: nobody holds the round, and the last one ended long enough ago.
select longest_key_days from gateway.begin_retention($1, $2, $3, $4);

-- name: hold
-- guard: the round is still the caller's.
select longest_key_days from gateway.hold_retention($1, $2, $3);

-- name: longest
-- guard: none, it only reads.
select longest_key_days from gateway.retention;

-- name: commands
-- guard: settled and past its date; see migrations, "Retention".
select bodies, keys, last_at, last_tenant, last_digest, missed
  from gateway.forget_commands($1, $2, $3, $4);

-- name: audit
-- guard: older than so many days.
select gateway.forget_audit($1, $2) as gone;

-- name: jobs
-- guard: finished so many days ago.
select gateway.forget_jobs($1, $2) as gone;

-- name: job_keys
-- guard: of a job that finished so many days ago and is out of the history.
select gateway.forget_job_keys($1, $2) as gone;

-- name: watched
-- guard: nobody has asked about it for a day, and it is settled or gone.
select last_tenant, last_digest from gateway.forget_watched($1, $2, $3);

-- name: given_back
-- guard: expired, and no unsettled command has the key.
select gateway.forget_given_back($1) as gone;

-- name: touch
-- guard: an entity of an unfinished job; only its time of touch rises.
select last_tenant, last_job, missed from gateway.touch_job_entities($1, $2, $3);

-- name: entities
-- guard: untouched for so many days and one more, no open slot, no lease.
select entities, last_tenant, last_entity from gateway.forget_entities($1, $2, $3, $4);

-- name: due
-- guard: none, it only reads: what a round would forget now. It may read whole tables.
-- $1 days of audit, $2 of finished jobs, $3 of their keys, $4 of entities (0: none are due).
select (select count(*) from gateway.commands c
         where c.settled_at is not null and c.expires_at > n.now
           and c.settled_at + make_interval(days => c.response_days) <= n.now
           and c.admitted_at <= n.now
           and num_nonnulls(c.headers, c.body, c.evidence, c.probe_target) > 0) as bodies,
       (select count(*) from gateway.commands c
         where c.settled_at is not null and c.expires_at <= n.now
           and c.admitted_at <= n.now) as keys,
       (select count(*) from gateway.audit a
         where a.at <= n.now - make_interval(days => $1::int)) as audit,
       (select count(*) from gateway.job_history h
         where h.finished_at <= n.now - make_interval(days => $2::int)) as jobs,
       (select count(*) from gateway.job_keys k
         where k.finished_at <= n.now - make_interval(days => $3::int))
       -- Those of jobs that go in the same round, as soon as they are out of the history.
       + (select count(*) from gateway.job_history h
            join gateway.job_keys k on k.tenant = h.tenant and k.key = h.key and k.job = h.id
           where h.finished_at <= n.now - make_interval(days => greatest($2::int, $3::int))) as job_keys,
       (select count(*) from gateway.given_back g
         where g.expires_at <= n.now
           and not exists (select from gateway.commands c
                            where c.tenant = g.tenant and c.key_digest = g.key_digest
                              and c.settled_at is null)) as given_back,
       (select count(*) from gateway.entities e
         where $4::int > 0 and e.touched_at <= n.now - make_interval(days => $4::int + 1)
           and e.open_key is null
           and not exists (select from gateway.job_leases l
                            where l.tenant = e.tenant and l.entity = e.entity)
           and not exists (select from gateway.jobs j
                            where j.tenant = e.tenant and j.entity = e.entity)
           and not exists (select from gateway.commands c
                            where c.tenant = e.tenant and c.entity = e.entity
                              and c.settled_at is null)) as entities
  from (select gateway.clock() as now offset 0) n;
