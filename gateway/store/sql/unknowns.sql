-- name: take_over
-- guard: the attempt that was judged, unsettled, past its deadline; and all that row 7 asks for (see
-- migrations/0013).
select result, before from gateway.take_over($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15);

-- name: sweep
-- guard: one at a time for each pass; only what is older than its lag.
-- $1 pass, $2 rows.
select gateway.sweep($1, $2);

-- name: take_due
-- guard: due, and locked by nobody; asked about only where policy, upstream and account are the same.
-- $1, $2: policies that can be asked about, and their digests; $3 rows that nobody has looked at yet,
-- $4 rows to ask about; $5 ms until these are due again.
select tenant, key_digest, attempt, policy, entity, target, asked_at
  from gateway.take_due($1, $2, $3, $4, $5);

-- name: not_ours
-- guard: none, it only reads. $1, $2 as above; $3 seconds that they are due already.
select policy from gateway.not_ours($1, $2, $3);

-- name: ask_now
-- guard: this attempt, unknown, and asked about by nobody else now.
select tenant, key_digest, attempt, policy, entity, target, asked_at
  from gateway.ask_now($1, $2, $3, $4, $5, $6);

-- name: due_s
-- guard: none, it only reads. $3: the seconds to say while somebody is asking.
select case when w.busy_until > n.now then $3::int
            else ceil(extract(epoch from w.due_at - n.now))::int end
  from gateway.watched w
 cross join (select gateway.clock() as now offset 0) n
 where w.tenant = $1 and w.key_digest = $2;

-- name: probed
-- guard: the attempt that was asked about, unsettled, past its deadline; "absent" twice, late enough
-- and far enough apart (see migrations/0014).
select gateway.probed($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: report
-- guard: that of resolve (see migrations/0013).
select result, remaining_s from gateway.report($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11,
                                               $12, $13);
