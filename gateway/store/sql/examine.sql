-- name: settings
-- guard: none, it only reads. As numbers in the setting's own unit (milliseconds for all times here).
select name, setting from pg_settings where name = any ($1::text[]);

-- name: server
-- guard: none, it only reads.
-- Connections: what is left of max_connections for ordinary roles, of the role's and of the database's
-- own limit. Backends of others are counted by the server; a role sees that they are there.
with limits as (
    select current_setting('max_connections')::int
           - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0) as all_of_it,
           nullif((select rolconnlimit from pg_roles where rolname = current_user), -1) as of_role,
           nullif((select datconnlimit from pg_database where datname = current_database()), -1) as of_database
), used as (
    select count(*) as all_of_it,
           count(*) filter (where usename = current_user) as of_role,
           count(*) filter (where datname = current_database()) as of_database
      from pg_stat_activity
     where backend_type = 'client backend' and application_name <> 'fencegate doctor'
)
select current_setting('server_version_num')::int as version, pg_is_in_recovery() as in_recovery,
       least(l.all_of_it, l.of_role, l.of_database) as usable,
       greatest(0, least(l.all_of_it - u.all_of_it, l.of_role - u.of_role,
                         l.of_database - u.of_database))::int as free
  from limits l, used u;

-- name: standbys
-- guard: none, it only reads.
select coalesce(nullif(application_name, ''), host(client_addr), 'a standby') as name, state, sync_state
  from pg_stat_replication
 order by 1;

-- name: unvacuumed
-- guard: none, it only reads.
select c.relname as name
  from pg_class c
  join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = 'gateway' and c.relkind = 'r'
   and exists (select from unnest(c.reloptions) o where lower(o) in (
       'autovacuum_enabled=false', 'autovacuum_enabled=off', 'autovacuum_enabled=0',
       'autovacuum_enabled=no'))
 order by 1;
