-- Unknown outcomes, found out: what a command records so that it can be asked about or sent again.
--
-- probe_target: the target of the status query (method GET), as the policy made it of this request at
-- admission; null where the policy asks nothing. earlier: the attempts that were taken over (row 7),
-- oldest first; an answer to any of them settles the command. Neither is indexed, so a settle stays a
-- HOT update.
--
-- settled_by also says: probe (a status query proved it), report (POST /v1/evidence did). The checks
-- are not validated: no older row breaks them, and looking at each would stop every admit meanwhile.
alter table gateway.commands
    add column probe_target bytea,
    add column earlier uuid[],
    add constraint commands_probe_target_check check (octet_length(probe_target) <= 16384) not valid,
    add constraint commands_earlier_check check (cardinality(earlier) <= 16) not valid,
    drop constraint commands_settled_by_check,
    add constraint commands_settled_by_check check (
        settled_by in ('answer', 'late', 'resolved', 'probe', 'report')) not valid;

-- Commands that were not settled some seconds after they were admitted, found by gateway.sweep. Only
-- those: so neither admit nor settle writes here, and it stays small.
-- due_at: when to look at it next. upstream_digest: as the command's, once it was said that it is
-- unknown and only those who may ask about it have anything to do; null before, for anybody.
-- busy_until: a probe is on its way until then at most; who died with one leaves it due again.
-- tries: probes so far. asked_at, said: of the last one, database time before it was sent, and what came
-- of it. absent_at: when the first "not executed" that counts was recorded.
create table gateway.watched (
    tenant     int not null,
    key_digest bytea not null,
    attempt    uuid not null,
    policy     text not null,
    due_at     timestamptz not null,
    busy_until timestamptz not null default '-infinity',
    tries      int not null default 0,
    absent_at  timestamptz,
    asked_at   timestamptz,
    said       text,
    upstream_digest bytea,
    constraint watched_pkey primary key (tenant, key_digest)
);
create index watched_new_idx on gateway.watched (due_at) where upstream_digest is null;
-- So that a look reads only what its process may ask about, however much of others' is due.
create index watched_due_idx on gateway.watched (policy, upstream_digest, due_at)
 where upstream_digest is not null;

-- An attempt that takes over from an unknown one says so, and so does its answer. Not "resolved": where
-- rows are missed, that says that nothing was lost.
alter table gateway.audit
    drop constraint audit_event_check,
    add constraint audit_event_check check (event in (
        'fence_stale', 'fence_refused', 'entity_mismatch', 'key_reused', 'released',
        'outcome_unknown', 'taken_over', 'settled', 'resolved', 'late_evidence',
        'duplicate_effect_suspected', 'heartbeat_lost', 'lease_expired', 'result_rejected', 'operator')) not valid;

-- How far gateway.sweep has read the commands, by admitted_at. near: soon after they were admitted.
-- far: once more when any timeout (an hour at most) is long over, for what was committed so late that
-- the first pass had gone by, or while the clock stepped back, which takes both back with it.
create table gateway.sweeps (
    name     text not null constraint sweeps_pkey primary key,
    lag      interval not null,
    swept_to timestamptz not null default '-infinity'
);
insert into gateway.sweeps (name, lag) values ('near', '5 s'), ('far', '2 h');

-- Keys that were given back although their upstream had heard of them, where it knows each by a key of
-- its own: it may count its memory of that one from then on. first_sent_at: when the first command under
-- the key was admitted; from there counts how long one that is admitted under it again may be sent
-- again. Kept for key_days, as the key of a settled command is.
create table gateway.given_back (
    tenant        int not null,
    key_digest    bytea not null,
    first_sent_at timestamptz not null,
    expires_at    timestamptz not null,
    constraint given_back_pkey primary key (tenant, key_digest)
);
create index given_back_expires_idx on gateway.given_back (expires_at);

-- When the upstream may first have stored the key of a command that was admitted at p_admitted_at.
create function gateway.first_sent(p_tenant int, p_key_digest bytea, p_admitted_at timestamptz)
returns timestamptz
language sql stable
as $$
    select least(p_admitted_at, (
        select g.first_sent_at from gateway.given_back g
         where g.tenant = p_tenant and g.key_digest = p_key_digest));
$$;

-- Admit as before (see 0002 for its guard, 0005 for row 2), with the probe's target, and with what
-- rows 7 and 8 need to know of a command that stands there: how its outcome is found out if it becomes
-- unknown (known_unknown), how long ago its key was first sent, which one, and whether that went to
-- what is the same upstream, account and key field today (known_account_same). Whether rows 7 and 8
-- hold is judged again, under locks, by take_over and ask_now.
create function gateway.admit(
    p_tenant int[], p_key_digest bytea[], p_key text[], p_policy text[], p_entity text[],
    p_fingerprint bytea[], p_rules bytea[], p_fence bigint[], p_attempt uuid[],
    p_principal text[], p_request_id text[], p_serial boolean[], p_unknown text[],
    p_upstream_key text[], p_upstream_digest bytea[],
    p_deadline_ms int[], p_settle_delay_s int[], p_response_days int[], p_key_days int[],
    p_outline bytea[], p_issuer_here boolean[], p_probe_target bytea[]
) returns table (
    ord bigint, mark bigint, held bigint,
    known_attempt uuid, known_state text, known_same boolean, known_remaining_ms bigint,
    known_status int, known_headers bytea, known_body bytea, known_settled_by text,
    known_evidence_status int,
    open_key text, open_state text, open_remaining_ms bigint,
    known_unknown text, known_age_ms bigint, known_upstream_key text, known_account_same boolean
)
language plpgsql
-- Fresh tables have no statistics; without these pins small batches ran three times slower.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
begin
    -- The gateway pins this for each connection, which a pooler in between may have dropped. Not
    -- asked of the release before (null), which does not pin it. issue_fence needs no such check:
    -- whoever changed the entity since the snapshot has changed its row, whose lock then fails.
    if p_issuer_here is not null
       and current_setting('transaction_isolation') <> 'read committed' then
        raise exception 'the database runs transactions as %, and the gateway needs read committed; reset default_transaction_isolation for the database and the role',
            current_setting('transaction_isolation') using errcode = 'feature_not_supported';
    end if;

    insert into gateway.entities (tenant, entity, touched_at)
    select i.tenant, i.entity, gateway.clock()
      from unnest(p_tenant, p_entity, p_fence, p_serial) as i (tenant, entity, fence, serial)
     where i.fence is not null or i.serial
     order by i.tenant, i.entity collate "C"
        on conflict (tenant, entity) do nothing;

    perform 1
       from gateway.entities e
       join unnest(p_tenant, p_entity, p_fence, p_serial) as i (tenant, entity, fence, serial)
         on e.tenant = i.tenant and e.entity = i.entity
      where i.fence is not null or i.serial
      order by e.tenant, e.entity
        for no key update of e;

    v_now := gateway.clock();

    with input as (
        select * from unnest(
            p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence,
            p_attempt, p_principal, p_request_id, p_serial, p_unknown, p_upstream_key,
            p_upstream_digest, p_deadline_ms, p_settle_delay_s, p_response_days, p_key_days,
            p_outline, p_issuer_here, p_probe_target
        ) as i (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence,
            attempt, principal, request_id, serial, unknown, upstream_key,
            upstream_digest, deadline_ms, settle_delay_s, response_days, key_days, outline, issuer_here,
            probe_target)
    ), inserted as (
        insert into gateway.commands (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence, attempt, principal,
            request_id, serial, unknown, upstream_key, upstream_digest, settle_delay_s,
            response_days, key_days, admitted_at, deadline, outline, probe_target)
        select i.tenant, i.key_digest, i.key, i.policy, i.entity, i.fingerprint, i.rules, i.fence,
               i.attempt, i.principal, i.request_id, i.serial, i.unknown, i.upstream_key,
               i.upstream_digest, i.settle_delay_s, i.response_days, i.key_days,
               v_now, v_now + i.deadline_ms * interval '1 millisecond', i.outline,
               i.probe_target
          from input i
          left join gateway.entities e on e.tenant = i.tenant and e.entity = i.entity
         where (i.fence is null or i.fence >= e.fence)
           and not coalesce(gateway.is_not_held(i.fence, e.held, i.issuer_here), false)
           and (not i.serial or (e.entity is not null and e.open_key is null))
         order by i.tenant, i.key_digest
            on conflict (tenant, key_digest) do nothing
        returning tenant, key_digest, serial, attempt, deadline
    )
    update gateway.entities e
       -- An entity whose fences are issued here has the highest that was; nobody else raises it.
       set fence = case when e.held is null and i.issuer_here is not true
                        then greatest(e.fence, i.fence) else e.fence end,
           open_key = case when n.serial then n.key_digest else e.open_key end,
           open_attempt = case when n.serial then n.attempt else e.open_attempt end,
           open_until = case when n.serial then n.deadline else e.open_until end,
           touched_at = v_now
      from input i
      left join inserted n on n.tenant = i.tenant and n.key_digest = i.key_digest
     where e.tenant = i.tenant and e.entity = i.entity
       and (i.fence is not null or i.serial)
       and ((i.fence > e.fence and e.held is null and i.issuer_here is not true)
            or n.serial or e.touched_at < v_now - interval '1 day');

    -- A fresh snapshot and a fresh reading: the insert above may have waited for another's commit.
    v_now := gateway.clock();

    return query
    with input as (
        select * from unnest(
            p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence,
            p_attempt, p_principal, p_request_id, p_serial, p_issuer_here, p_upstream_digest
        ) with ordinality as i (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence,
            attempt, principal, request_id, serial, issuer_here, upstream_digest, ord)
    ), judged as (
        select i.*, e.fence as mark, e.held as held, c.attempt as c_attempt,
               case when c.policy <> i.policy or c.entity <> i.entity then false
                    when c.rules = i.rules then c.fingerprint = i.fingerprint end as same,
               case when c.settled_at is not null then 'settled'
                    when c.deadline <= v_now then 'unknown'
                    when c.attempt is not null then 'in-flight' end as state,
               (extract(epoch from c.deadline - v_now) * 1000)::bigint as remaining_ms,
               c.status, c.headers, c.body, c.settled_by, c.evidence_status,
               c.unknown as c_unknown, c.upstream_key as c_upstream_key,
               (extract(epoch from v_now - case
                   when c.unknown = 'resend' and c.settled_at is null and c.deadline <= v_now
                   then gateway.first_sent(c.tenant, c.key_digest, c.admitted_at)
                   else c.admitted_at end) * 1000)::bigint as age_ms,
               c.upstream_digest = i.upstream_digest as account_same,
               o.key as o_key,
               case when e.open_until <= v_now then 'unknown' else 'in-flight' end as o_state,
               (extract(epoch from e.open_until - v_now) * 1000)::bigint as o_remaining_ms,
               c.attempt is distinct from i.attempt and i.fence < e.fence as stale,
               c.attempt is distinct from i.attempt and i.fence >= e.fence
                   and gateway.is_not_held(i.fence, e.held, i.issuer_here) as not_held
          from input i
          left join gateway.entities e
            on e.tenant = i.tenant and e.entity = i.entity and (i.fence is not null or i.serial)
          left join gateway.commands c on c.tenant = i.tenant and c.key_digest = i.key_digest
          left join gateway.commands o
            on i.serial and o.tenant = e.tenant and o.key_digest = e.open_key
               and e.open_key is distinct from i.key_digest
    ), refused as (
        insert into gateway.audit (
            tenant, id, at, event, principal, policy, entity, key, fence, high_water_mark, attempt,
            request_id, fingerprint, reason)
        select j.tenant, gateway.audit_id(j.attempt, r.event), v_now, r.event, j.principal,
               j.policy, j.entity, j.key, j.fence, j.mark, j.attempt, j.request_id, j.fingerprint,
               r.reason
          from judged j
         cross join lateral (
            select 'fence_stale', format('fence %s is below the high-water mark %s', j.fence, j.mark)
             where j.stale
            union all
            select 'fence_refused', format('fence %s is not the one now held: %s', j.fence, case
                       when j.held is null then 'none has been issued here'
                       when j.held = 0 then 'nobody holds one'
                       else j.held::text end)
             where j.not_held
            union all
            select 'key_reused', format('the key already names another command, now %s', j.state)
             where j.stale is not true and j.not_held is not true and j.same is false
               and j.c_attempt is distinct from j.attempt
         ) as r (event, reason)
            on conflict (tenant, id) do nothing
    )
    select j.ord, j.mark, j.held, j.c_attempt, j.state, j.same, j.remaining_ms,
           j.status,
           case when j.stale is not true and j.not_held is not true and j.same is not false
                then j.headers end,
           case when j.stale is not true and j.not_held is not true and j.same is not false
                then j.body end,
           j.settled_by, j.evidence_status, j.o_key,
           case when j.o_key is not null then j.o_state end, j.o_remaining_ms,
           j.c_unknown, j.age_ms, j.c_upstream_key, j.account_same
      from judged j;
end
$$;

-- The admit of the release before: no probes. It knows no probe's nor report's verdict; a person's is
-- the nearest: executed, without a response, or with the one that is recorded.
create or replace function gateway.admit(
    p_tenant int[], p_key_digest bytea[], p_key text[], p_policy text[], p_entity text[],
    p_fingerprint bytea[], p_rules bytea[], p_fence bigint[], p_attempt uuid[],
    p_principal text[], p_request_id text[], p_serial boolean[], p_unknown text[],
    p_upstream_key text[], p_upstream_digest bytea[],
    p_deadline_ms int[], p_settle_delay_s int[], p_response_days int[], p_key_days int[],
    p_outline bytea[], p_issuer_here boolean[]
) returns table (
    ord bigint, mark bigint, held bigint,
    known_attempt uuid, known_state text, known_same boolean, known_remaining_ms bigint,
    known_status int, known_headers bytea, known_body bytea, known_settled_by text,
    known_evidence_status int,
    open_key text, open_state text, open_remaining_ms bigint
)
language sql
as $$
    select a.ord, a.mark, a.held, a.known_attempt, a.known_state, a.known_same,
           a.known_remaining_ms, a.known_status, a.known_headers, a.known_body,
           case when a.known_settled_by in ('probe', 'report') then 'resolved'
                else a.known_settled_by end,
           a.known_evidence_status, a.open_key, a.open_state, a.open_remaining_ms
      from gateway.admit(
        p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence, p_attempt,
        p_principal, p_request_id, p_serial, p_unknown, p_upstream_key, p_upstream_digest,
        p_deadline_ms, p_settle_delay_s, p_response_days, p_key_days, p_outline, p_issuer_here,
        null::bytea[]) as a;
$$;
