-- name: issue
-- guard: no lease on the entity, judged under its row lock (see migrations/0005).
select fence, job, remaining_ms from gateway.issue_fence($1::int, $2::text);
