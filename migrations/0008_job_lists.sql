-- What operators list jobs by. None is led by the tenant, for the reason given in 0006, and none names
-- a column that a heartbeat or a claim changes. Time, tenant and id are the place behind which a page
-- begins: many jobs that were made in one transaction have the same time.
create index jobs_created_idx on gateway.jobs (created_at, tenant, id);
drop index gateway.job_history_finished_idx;
create index job_history_finished_idx on gateway.job_history (finished_at, tenant, id);
create index job_history_entity_idx on gateway.job_history (entity, finished_at, tenant, id);
create index job_history_session_idx on gateway.job_history (session, finished_at, tenant, id)
    where session is not null;
