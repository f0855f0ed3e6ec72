-- The smallest durable commit: one row.
insert into one_row (at) values (now());
