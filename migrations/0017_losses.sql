-- Rows that the database had acknowledged and no longer has: after a failover to a server that lagged,
-- or a restore. Whoever remembers them reports them, and what is remembered is put back. Until an
-- operator acknowledges, no process admits, claims or issues.

-- server_before, server_after: "system identifier/timeline" as the reporting process saw them.
create table gateway.losses (
    id              uuid not null constraint losses_pkey primary key,
    found_at        timestamptz not null,
    server_before   text,
    server_after    text,
    acknowledged_at timestamptz,
    acknowledged_by text,
    reason          text,
    constraint losses_acknowledged_check check (num_nulls(acknowledged_at, acknowledged_by, reason) in (0, 3))
);

-- What was missing. what: command (its row), settlement (the row was there, unsettled or not at all),
-- mark (the entity's row, or its mark was lower; fence is the mark). restored: whether it was put back;
-- not where another command had taken the key meanwhile: two effects are to be suspected then.
create table gateway.lost_rows (
    loss     uuid not null,
    tenant   int not null,
    what     text not null constraint lost_rows_what_check check (what in ('command', 'settlement', 'mark')),
    entity   text collate "C" not null,
    key      text collate "C" not null,  -- '' for a mark
    policy   text,
    fence    bigint,
    attempt  uuid,
    status   int,
    restored boolean not null,
    constraint lost_rows_pkey primary key (tenant, loss, what, entity, key)
);

-- Report lost rows and put them back: marks rise again, and nobody holds an entity whose fences are
-- issued here; a command comes back unsettled, with its whole time until it is unknown, or settled
-- without its response. One that was taken over is so again where the attempt before it stands there;
-- else it comes back with that one, and those before it, as earlier attempts. When it was first sent is not known any more,
-- so a command that comes back is not sent again ("hold" in place of "resend"); it can be asked about.
-- Guard: a mark only rises; a command only where its key is free, or held by the attempt that it took
-- over from; a settlement only of its own attempt.
-- Repeating it changes nothing. p_earlier: the attempts that each took over from, the oldest first, as
-- the text of an array. Where the loss is acknowledged by now, an operator has not seen these rows: they
-- are another loss, whose id follows from that one's, so that a repeat finds it.
-- Returns the loss, and for each row whether it stands again.
create function gateway.report_loss(
    p_loss uuid, p_before text, p_after text,
    p_what text[], p_tenant int[], p_key_digest bytea[], p_key text[], p_policy text[], p_entity text[],
    p_fingerprint bytea[], p_rules bytea[], p_fence bigint[], p_attempt uuid[],
    p_principal text[], p_request_id text[], p_serial boolean[], p_unknown text[],
    p_upstream_key text[], p_upstream_digest bytea[],
    p_deadline_ms int[], p_settle_delay_s int[], p_response_days int[], p_key_days int[],
    p_outline bytea[], p_status int[], p_issued boolean[], p_probe_target bytea[], p_earlier text[]
) returns table (loss uuid, ord bigint, restored boolean)
language plpgsql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now  timestamptz;
    v_loss uuid := p_loss;
begin
    insert into gateway.entities (tenant, entity, touched_at)
    select distinct i.tenant, i.entity collate "C", gateway.clock()
      from unnest(p_tenant, p_entity) as i (tenant, entity)
     order by i.tenant, i.entity collate "C"
        on conflict (tenant, entity) do nothing;
    perform 1
       from gateway.entities e
      where (e.tenant, e.entity) in (select i.tenant, i.entity from unnest(p_tenant, p_entity) as i (tenant, entity))
      order by e.tenant, e.entity
        for no key update of e;
    v_now := gateway.clock();

    loop
        insert into gateway.losses (id, found_at, server_before, server_after)
        values (v_loss, v_now, p_before, p_after)
            on conflict (id) do nothing;
        -- Locked against an acknowledgement, which then counts these rows.
        perform 1 from gateway.losses l where l.id = v_loss and l.acknowledged_at is null for share;
        exit when found;
        v_loss := gateway.audit_id(v_loss, 'acknowledged');
    end loop;

    update gateway.entities e
       set fence = i.fence, touched_at = v_now,
           held = case when e.held is not null or i.issued then 0 end
      from unnest(p_what, p_tenant, p_entity, p_fence, p_issued) as i (what, tenant, entity, fence, issued)
     where i.what = 'mark' and e.tenant = i.tenant and e.entity = i.entity and e.fence < i.fence;

    with input as (
        select * from unnest(
            p_what, p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fingerprint, p_rules, p_fence,
            p_attempt, p_principal, p_request_id, p_serial, p_unknown, p_upstream_key,
            p_upstream_digest, p_deadline_ms, p_settle_delay_s, p_response_days, p_key_days, p_outline,
            p_status, p_probe_target, p_earlier
        ) as i (
            what, tenant, key_digest, key, policy, entity, fingerprint, rules, fence,
            attempt, principal, request_id, serial, unknown, upstream_key,
            upstream_digest, deadline_ms, settle_delay_s, response_days, key_days, outline, status,
            probe_target, earlier)
         where what <> 'mark'
    ), inserted as (
        insert into gateway.commands (
            tenant, key_digest, key, policy, entity, fingerprint, rules, fence, attempt, principal,
            request_id, serial, unknown, upstream_key, upstream_digest, settle_delay_s,
            response_days, key_days, admitted_at, deadline, outline, probe_target, attempts, earlier,
            settled_at, settled_by, expires_at, status)
        select i.tenant, i.key_digest, i.key, i.policy, i.entity, i.fingerprint, i.rules, i.fence,
               i.attempt, i.principal, i.request_id, i.serial,
               case when i.unknown = 'resend' then 'hold' else i.unknown end, i.upstream_key,
               i.upstream_digest, i.settle_delay_s, i.response_days, i.key_days,
               v_now, v_now + i.deadline_ms * interval '1 millisecond', i.outline, i.probe_target,
               1 + coalesce(cardinality(i.earlier::uuid[]), 0), i.earlier::uuid[],
               case when i.status is not null then v_now end,
               case when i.status is not null then 'late' end,
               case when i.status is not null then v_now + make_interval(days => i.key_days) end,
               i.status
          from input i
         order by i.tenant, i.key_digest
            on conflict (tenant, key_digest) do nothing
        returning tenant, key_digest, entity, attempt, serial, deadline, settled_at, upstream_key, key_days
    ), heard as (
        -- When it was first sent is lost with it, so whatever is admitted under its key later is past
        -- its window. Not -infinity, which PostgreSQL 16 cannot subtract.
        insert into gateway.given_back as k (tenant, key_digest, first_sent_at, expires_at)
        select n.tenant, n.key_digest, timestamptz 'epoch', v_now + make_interval(days => n.key_days)
          from inserted n
         where n.upstream_key is not null
         order by n.tenant, n.key_digest
            on conflict (tenant, key_digest) do update
           set first_sent_at = excluded.first_sent_at,
               expires_at = greatest(k.expires_at, excluded.expires_at)
    )
    update gateway.entities e
       set open_key = n.key_digest, open_attempt = n.attempt, open_until = n.deadline
      from inserted n
     where n.serial and n.settled_at is null
       and e.tenant = n.tenant and e.entity = n.entity and e.open_key is null;

    -- As in take_over; the sweep has passed its admission.
    with again as (
        update gateway.commands c
           set attempt = i.attempt, attempts = 1 + cardinality(i.earlier), earlier = i.earlier,
               deadline = v_now + i.deadline_ms * interval '1 millisecond', fence = i.fence,
               principal = i.principal, request_id = i.request_id,
               evidence_at = null, evidence_status = null, evidence = null
          from (select tenant, key_digest, earlier::uuid[], attempt, deadline_ms, fence, principal, request_id
                  from unnest(p_tenant, p_key_digest, p_earlier, p_attempt, p_deadline_ms, p_fence,
                              p_principal, p_request_id)
                       as i (tenant, key_digest, earlier, attempt, deadline_ms, fence, principal, request_id)
               ) as i
         where c.tenant = i.tenant and c.key_digest = i.key_digest
           and c.attempt = any (i.earlier) and c.settled_at is null
        returning c.tenant, c.key_digest, c.entity, c.policy, c.attempt, c.serial, c.deadline
    ), listed as (
        insert into gateway.watched (tenant, key_digest, attempt, policy, due_at)
        select a.tenant, a.key_digest, a.attempt, a.policy, a.deadline
          from again a
         order by a.tenant, a.key_digest
            on conflict (tenant, key_digest) do update
           set attempt = excluded.attempt, due_at = excluded.due_at, tries = 0, absent_at = null,
               upstream_digest = null, asked_at = null, said = null
    )
    update gateway.entities e
       set open_key = a.key_digest, open_attempt = a.attempt, open_until = a.deadline
      from again a
     where a.serial and e.tenant = a.tenant and e.entity = a.entity
       and coalesce(e.open_key, a.key_digest) = a.key_digest;

    with done as (
        update gateway.commands c
           set settled_at = v_now, settled_by = 'late', status = i.status,
               expires_at = v_now + make_interval(days => c.key_days)
          from unnest(p_what, p_tenant, p_key_digest, p_attempt, p_status)
               as i (what, tenant, key_digest, attempt, status)
         where i.what = 'settlement' and c.tenant = i.tenant and c.key_digest = i.key_digest
           and (c.attempt = i.attempt or i.attempt = any (c.earlier)) and c.settled_at is null
        returning c.tenant, c.entity, c.attempt
    )
    update gateway.entities e
       set open_key = null, open_attempt = null, open_until = null, touched_at = v_now
      from done d
     where e.tenant = d.tenant and e.entity = d.entity and e.open_attempt = d.attempt;

    -- Of two attempts of one key, that one does not stand again is what an operator must see; so too
    -- where a row that was put back is missing again, and its key is another's now.
    return query
    with found as (
        select i.*, i.what = 'mark' or coalesce(c.attempt = i.attempt or i.attempt = any (c.earlier), false)
                    as restored
          from unnest(p_what, p_tenant, p_key_digest, p_key, p_policy, p_entity, p_fence, p_attempt, p_status)
               with ordinality
               as i (what, tenant, key_digest, key, policy, entity, fence, attempt, status, ord)
          left join gateway.commands c on c.tenant = i.tenant and c.key_digest = i.key_digest
    ), named as (
        insert into gateway.lost_rows (
            loss, tenant, what, entity, key, policy, fence, attempt, status, restored)
        select v_loss, f.tenant, f.what, f.entity, coalesce(f.key, ''), f.policy, f.fence, f.attempt,
               f.status, f.restored
          from found f
         order by f.restored
            on conflict (tenant, loss, what, entity, key) do nothing
    ), known as (
        update gateway.lost_rows r
           set restored = false
          from found f
         where r.tenant = f.tenant and r.loss = v_loss and r.what = f.what and r.entity = f.entity
           and r.key = coalesce(f.key, '') and r.restored and not f.restored
    )
    select v_loss, f.ord, f.restored from found f;
end
$$;

-- An operator has looked: all go on. Guard: not acknowledged before. Writes one audit row for each
-- tenant that lost something. Returns how many losses were acknowledged.
create function gateway.acknowledge_losses(p_reason text, p_principal text) returns bigint
language plpgsql
as $$
declare
    v_now timestamptz;
    v_ids uuid[];
begin
    select array_agg(o.id) into v_ids
      from (select id from gateway.losses where acknowledged_at is null order by id for update) o;
    v_now := gateway.clock();
    update gateway.losses
       set acknowledged_at = v_now, acknowledged_by = p_principal, reason = p_reason
     where id = any (v_ids);
    insert into gateway.audit (tenant, id, at, event, principal, reason)
    select r.tenant, gen_random_uuid(), v_now, 'operator', p_principal,
           format('loss of %s rows acknowledged: %s', count(*), p_reason)
      from gateway.lost_rows r
     where r.loss = any (v_ids)
     group by r.tenant;
    return coalesce(cardinality(v_ids), 0);
end
$$;
