-- Jobs: what is to be done, who is at it (gateway.job_leases, made in 0005), what became of it.
-- The tenant leads every primary key. No foreign keys and no triggers: each statement keeps the
-- rules below under its own locks.

-- Times of jobs are such as every language can hold; 'infinity' is none of them.
create function gateway.is_job_time(at timestamptz) returns boolean
    language sql immutable
    return at is null
        or (at >= timestamptz '1970-01-01 00:00:00Z' and at < timestamptz '9999-01-01 00:00:00Z');

-- Unfinished jobs only, so that claiming never reads past what is done.
--
-- state, of which the first four are "queued" to everybody outside:
--   ready          waits for a worker
--   scheduled      not before run_at; never confused with a lease, which is a row of its own
--   behind-entity  found by a claim while its entity had a lease
--   behind-user    found by a claim while its user was at the tool's limit
--   running        has a lease
--   waiting        for `approve`
-- The two states "behind" keep a backlog that cannot be served out of the way of what can. They rest
-- on this: a job is behind only while a lease that keeps it there exists, or a ready job with the same
-- entity and tool (or user and tool). Whoever ends such a lease, or takes such a ready job away without
-- a lease, makes the best job behind it ready (gateway.unblock).
--
-- attempts: leases of this stage that count. max_attempts: what the tool's class said at the last
-- claim, 0 before the first. previous: the result of the stage before. payload: JSON as it was sent.
-- 256 KiB for payload and result: a job carries words and references, not files; a hundred of them
-- fit into one claim. 4,096 characters of error: a traceback's end.
create table gateway.jobs (
    tenant       int not null,
    id           uuid not null,
    seq          bigint not null generated always as identity,
    key          text collate "C" not null constraint jobs_key_check check (length(key) between 1 and 255),
    tool         text collate "C" not null constraint jobs_tool_check check (length(tool) between 1 and 64),
    session      text collate "C" constraint jobs_session_check check (length(session) between 1 and 255),
    on_behalf    text collate "C" constraint jobs_on_behalf_check check (length(on_behalf) between 1 and 255),
    model        text constraint jobs_model_check check (length(model) <= 128),
    provider     text constraint jobs_provider_check check (length(provider) <= 128),
    stage        text constraint jobs_stage_check check (length(stage) between 1 and 64),
    stage_no     int not null default 1,
    entity       text collate "C" not null constraint jobs_entity_check check (length(entity) between 1 and 255),
    payload      bytea not null constraint jobs_payload_check check (octet_length(payload) <= 262144),
    previous     bytea constraint jobs_previous_check check (octet_length(previous) <= 262144),
    priority     smallint not null constraint jobs_priority_check check (priority between 1 and 9),
    run_at       timestamptz not null constraint jobs_run_at_check check (gateway.is_job_time(run_at)),
    give_up_at   timestamptz constraint jobs_give_up_at_check check (gateway.is_job_time(give_up_at)),
    created_at   timestamptz not null,
    attempts     int not null default 0,
    max_attempts int not null default 0,
    state        text not null constraint jobs_state_check check (state in (
                     'ready', 'scheduled', 'behind-entity', 'behind-user', 'running', 'waiting')),
    last_error   text constraint jobs_error_check check (length(last_error) <= 4096),
    constraint jobs_pkey primary key (tenant, id),
    constraint jobs_attempts_check check (attempts between 0 and max_attempts)
);
-- Not led by the tenant: on a fresh table, without statistics, the planner would prefer such an index
-- to the primary key and read every ready job of the tenant to find a few by id. Only scheduled jobs
-- are never looked for by id and state; there, others' due jobs must not be in the way.
create index jobs_ready_idx on gateway.jobs (tool, tenant, priority, run_at, seq) where state = 'ready';
create index jobs_scheduled_idx on gateway.jobs (tenant, run_at) where state = 'scheduled';
create index jobs_behind_entity_idx on gateway.jobs (entity, tenant, tool, priority, run_at, seq)
    where state = 'behind-entity';
create index jobs_behind_user_idx on gateway.jobs (tool, tenant, on_behalf, priority, run_at, seq)
    where state = 'behind-user';
-- How many of a user's are ready: counted where its limit was raised.
create index jobs_ready_user_idx on gateway.jobs (on_behalf, tool, tenant)
    where state = 'ready' and on_behalf is not null;
create index jobs_give_up_idx on gateway.jobs (give_up_at) where give_up_at is not null and state <> 'running';
create index jobs_session_idx on gateway.jobs (session, tenant) where session is not null;

-- The key of a job outlives its move to the history: a second enqueue returns the first job.
create table gateway.job_keys (
    tenant int not null,
    key    text collate "C" not null,
    job    uuid not null,
    constraint job_keys_pkey primary key (tenant, key)
);

-- One row for every lease that ended, never changed: a repeated end is answered by it. The entity is
-- part of what names a lease: the stages of a job may have the same fence on different entities.
-- digest: SHA-256 of the end as it was sent; null where nobody sent one (expired, cancelled).
-- state: what the job became by it. result: of a stage that others follow; the last one's is in the
-- history.
create table gateway.job_runs (
    tenant     int not null,
    job        uuid not null,
    fence      bigint not null,
    stage      text,
    stage_no   int not null,
    entity     text collate "C" not null,
    owner      text not null,
    granted_at timestamptz not null,
    ended_at   timestamptz not null,
    how        text not null constraint job_runs_how_check check (how in (
                   'completed', 'failed', 'handed-back', 'cancelled', 'expired')),
    state      text not null,
    digest     bytea constraint job_runs_digest_check check (octet_length(digest) = 32),
    result     bytea,
    error      text,
    constraint job_runs_pkey primary key (tenant, job, entity, fence),
    constraint job_runs_sent_check check ((digest is null) = (how in ('cancelled', 'expired')))
);

-- Finished jobs.
create table gateway.job_history (
    tenant      int not null,
    id          uuid not null,
    key         text collate "C" not null,
    tool        text collate "C" not null,
    session     text collate "C",
    on_behalf   text collate "C",
    model       text,
    provider    text,
    stage       text,
    stage_no    int not null,
    entity      text collate "C" not null,
    payload     bytea not null,
    previous    bytea,
    priority    smallint not null,
    created_at  timestamptz not null,
    attempts    int not null,
    finished_at timestamptz not null,
    state       text not null constraint job_history_state_check check (state in (
                    'succeeded', 'failed', 'cancelled')),
    result      bytea constraint job_history_result_check check (octet_length(result) <= 262144),
    error       text constraint job_history_error_check check (length(error) <= 4096),
    constraint job_history_pkey primary key (tenant, id)
);
-- Not led by the tenant, for the same reason as above.
create index job_history_finished_idx on gateway.job_history (finished_at);
