create table entities (
    entity text primary key,
    fence  bigint not null
);
create table commands (
    key        text primary key,
    entity     text not null,
    fence      bigint not null,
    digest     bytea not null,
    created_at timestamptz not null default now(),
    settled_at timestamptz,
    status     int,
    body       bytea
);
