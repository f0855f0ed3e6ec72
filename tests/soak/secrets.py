"""The mutants of what keeps secrets in, requests on their way, and records in one piece."""

from tests.soak.mutant import Mutant

__all__ = ["SECRETS"]

_EGRESS = "tests/unit/core/test_egress.py::"
_DIALLED = "tests/integration/test_egress.py::"
_THROUGH = "tests/e2e/test_egress.py::"
_SECRET = "tests/unit/core/test_secret.py::"
_POLICY = "tests/unit/policy/test_secrets.py::"
_CRASH = "tests/unit/observe/test_crash.py::"
_PLANTED = "tests/e2e/test_planted_secrets.py::"
_WORDS = "tests/integration/test_database_words.py::"
_TLS = "tests/integration/test_upstream_mtls.py::"

SECRETS = [
    Mutant(
        "gateway/upstream/dialing.py",
        "every address is judged",
        "if refused is not None:",
        "if False:",
        (
            f"{_DIALLED}test_a_name_that_leads_inside_is_not_connected_to",
            f"{_THROUGH}test_a_name_that_leads_inside_is_refused_and_nothing_is_sent",
        ),
    ),
    Mutant(
        "gateway/upstream/dialing.py",
        "not only the first address is judged",
        "for _, where in addresses)",
        "for _, where in addresses[:1])",
        (f"{_DIALLED}test_one_address_that_is_not_listed_is_enough",),
    ),
    Mutant(
        "gateway/app.py",
        "what a policy lists is what is allowed",
        "networks=upstream.allow_networks,",
        "networks=(),",
        (f"{_THROUGH}test_a_network_that_is_listed_is_reached",),
    ),
    Mutant(
        "gateway/core/egress.py",
        "a mapped address is the IPv4 address that it leads to",
        "        return found.ipv4_mapped\n",
        "        return found\n",
        (f"{_EGRESS}test_behind_a_translator_somebody_elses_private_network_is_not_ours",),
    ),
    Mutant(
        "gateway/core/egress.py",
        "what a translator leads to is judged",
        "return _is_public(inner)",
        "return True",
        (f"{_EGRESS}test_a_name_leads_nowhere_else_by_itself",),
    ),
    Mutant(
        "gateway/core/egress.py",
        "no entry opens a metadata service behind a translator",
        "if any(_sealed(inner) is not None for inner in _hidden(found)):",
        "if False:",
        (f"{_EGRESS}test_no_entry_opens_a_metadata_service_behind_a_translator",),
    ),
    Mutant(
        "gateway/core/egress.py",
        "a wide entry does not open what nobody means by it",
        "_in(found, own) and _inside(own, sealed)",
        "_in(found, own)",
        (f"{_EGRESS}test_metadata_services_and_link_local_need_an_entry_of_their_own",),
    ),
    Mutant(
        "gateway/core/egress.py",
        "localhost is this machine",
        'return found.is_loopback if self.host == "localhost" else',
        'return True if self.host == "localhost" else',
        (f"{_EGRESS}test_localhost_is_this_machine_and_nothing_else",),
    ),
    Mutant(
        "gateway/core/secret.py",
        "a secret does not show itself",
        "def __repr__(self) -> str:\n        return _SHOWN",
        "def __repr__(self) -> str:\n        return repr(self._value)",
        (f"{_SECRET}test_no_ordinary_way_of_showing_a_value_shows_it",),
    ),
    Mutant(
        "gateway/policy/environment.py",
        "a credential is not written out",
        "    elif _is_credential(name, text):",
        "    elif False:",
        (f"{_POLICY}test_a_credential_that_is_written_out_is_a_mistake",),
    ),
    Mutant(
        "gateway/policy/environment.py",
        "the gateway's own secrets are not sent",
        "if name.upper().startswith(_OUR_OWN):",
        "if False:",
        (f"{_POLICY}test_no_policy_sends_what_is_the_gateways_own",),
    ),
    Mutant(
        "gateway/server.py",
        "no message of an exception is logged",
        "log.configure(settings.log_level, messages=False)",
        "log.configure(settings.log_level)",
        (f"{_PLANTED}test_no_log_line_and_no_standard_output_holds_one",),
    ),
    Mutant(
        "gateway/observe/crash.py",
        "a loop's words hold no argument",
        'words = "Exception in callback" if said.startswith("Exception in callback") else said',
        "words = said",
        (f"{_CRASH}test_what_a_loop_says_of_a_callback_or_a_task_holds_no_argument",),
    ),
    Mutant(
        "gateway/store/database.py",
        "nobody is told where the database is",
        "        return _of_system(error)",
        "        return str(error)",
        (f"{_WORDS}test_no_address_and_no_user_is_told",),
    ),
    Mutant(
        "gateway/policy/tlsfiles.py",
        "an old version of TLS is refused",
        "made.minimum_version = ssl.TLSVersion.TLSv1_2",
        "made.minimum_version = ssl.TLSVersion.TLSv1",
        (f"{_TLS}test_nothing_in_a_policy_turns_verifying_off",),
    ),
    Mutant(
        "gateway/policy/tlsfiles.py",
        "the environment gets no keys of connections",
        "    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)\n    made.minimum_version",
        "    made = ssl.create_default_context()\n    made.minimum_version",
        (f"{_TLS}test_the_environment_gets_no_keys_of_connections",),
    ),
]
