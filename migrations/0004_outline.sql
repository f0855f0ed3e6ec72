-- The outline of a request: digests of its parts, from which `explain` names the paths in which a
-- re-used key's request differs from its first; admit records it from 0005 on. Null where the command
-- was recorded by a release that does not know it, or by settle_unmatched.
--
-- 256 bytes: 5 fixed parts, 32 headers and 32 members take 234 (gateway/core/outline.py). The check is
-- not validated: older rows are all null, and looking at each would stop every admit meanwhile.
alter table gateway.commands
    add column outline bytea,
    add constraint commands_outline_check check (octet_length(outline) <= 256) not valid;
-- Digests do not compress.
alter table gateway.commands alter column outline set storage external;
