-- The two transactions of a command, in the tables of benchmarks/natural.
\set number random(1, 9000000000000000000)
begin;
insert into entities (entity, fence) values ('customer:' || :number, 7)
    on conflict (entity) do update set fence = excluded.fence where entities.fence <= excluded.fence;
insert into commands (key, entity, fence, digest)
    values (:number::text, 'customer:' || :number, 7, decode(repeat('5a', 32), 'hex'))
    on conflict (key) do nothing;
commit;
begin;
update commands set settled_at = now(), status = 200, body = decode(repeat('7b', 200), 'hex')
    where key = :number::text;
commit;
