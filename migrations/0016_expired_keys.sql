-- Row 10 of the decision table: a key that says itself when it was made (a UUIDv7), and that is older
-- than the memory of keys, is not taken for a new one: it may have been executed and forgotten.
--
-- A trigger and not one more condition in gateway.admit, because it must hold for every statement that
-- admits, that of the release before too. An insert that is skipped takes no slot and names no key, as
-- where the key was taken; the store asks gateway.is_expired_key which of the two it was.

-- The time in a UUIDv7, null for any other key (RFC 9562 §5.7: 48 bits of Unix milliseconds).
create function gateway.key_time(key text) returns timestamptz
    language sql immutable
    return case when key ~* '^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'
                then timestamptz 'epoch' + interval '1 ms'
                     * ('x' || lpad(left(key, 8) || substr(key, 10, 4), 16, '0'))::bit(64)::bigint end;

create function gateway.is_expired_key(key text, key_days int) returns boolean
    language sql volatile
    return length(key) = 36
       and coalesce(gateway.key_time(key) < gateway.clock() - make_interval(days => key_days), false);

create function gateway.skip_row() returns trigger
    language plpgsql
as $$
begin
    return null;
end
$$;

-- Guard: only what is admitted; a response that is recorded where its key is free is no new command.
create trigger commands_expired_key before insert on gateway.commands
    for each row
    when (new.settled_at is null and gateway.is_expired_key(new.key, new.key_days))
    execute function gateway.skip_row();
