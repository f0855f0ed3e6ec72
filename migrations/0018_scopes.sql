-- What a gateway key may do. null: a key of before there were scopes, which keeps all that it could do
-- then; the release before makes such keys too, and looks at no scopes. Words are not checked here: a
-- later release knows more of them, and what a release does not know allows nothing.
alter table gateway.caller_keys
    add column scopes text[]
        constraint caller_keys_scopes_check check (
            cardinality(scopes) between 1 and 50 and array_position(scopes, null) is null);
