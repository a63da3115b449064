"""
The tests that hold the rows of the compatibility page: for each section, a test and its rows.

The names are those of pytest, below `tests/`. `tests/test_compatibility.py` collects them, and
`tests/conftest.py` fails one that is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping

CORE = "conformance/test_core_transcripts.py::test_a_server_answers_as_nats_server_does"
API = "conformance/test_js_transcripts.py::test_jetstream_answers_as_nats_server_does"
DELIVERIES = (
    "conformance/test_js_consumer_transcripts.py::test_consumers_deliver_as_nats_server_does"
)
TRACES = "conformance/test_message_tracing.py::test_both_servers_tell_the_same"
WAYS = "conformance/test_transports.py::test_every_kind_of_user_connects_by_every_way"
QUESTIONS = (
    "conformance/test_system_matrix.py::test_the_same_questions_about_the_server_are_answered"
)
PAGES = "conformance/test_system_matrix.py::test_pages_tell_the_same_of_accounts"
RESOLVER = "conformance/test_resolver.py::"
ORIGINS = "conformance/test_remote_origins.py::"
TLS = "conformance/test_tls.py::"
WEBSOCKET = "conformance/test_websocket.py::"
STORING = "conformance/test_js_storing.py::"
CONSUMER = "unit/jetstream/consumers/test_consumer.py::"
PULL = "unit/jetstream/consumers/test_pull.py::"
INTAKE = "unit/jetstream/intake/"
VIEWS = "unit/net/monitor/test_views.py::"
MIRROR = f"{STORING}test_a_mirror_is_a_copy_of_its_origin"
SERVE = "unit/cli/serve/test_serve.py::"
LOG = "unit/cli/serve/test_log.py::"
WALKS = "unit/config/file/test_directives.py::"
"""Tests that walk the tables of directives and flags."""


def transcript(title: str) -> str:
    """Return the test that plays a transcript of the core protocol."""
    return f"{CORE}[penstock-{title}]"


def api(name: str) -> str:
    """Return the test that plays a transcript of the JetStream API."""
    return f"{API}[penstock-{name}]"


def deliveries(name: str) -> str:
    """Return the test that plays a transcript of deliveries."""
    return f"{DELIVERIES}[penstock-{name}]"


PROOFS: Mapping[str, Mapping[str, str]] = {
    "From a client": {
        transcript("CONNECT answers the first PONG with an INFO"): "CONNECT PING",
        transcript("PONG nobody asked for"): "PONG",
        transcript("* takes one token"): "PUB SUB",
        transcript("HPUB"): "HPUB",
        transcript("UNSUB twice"): "UNSUB",
    },
    "From the server": {
        transcript("CONNECT answers the first PONG with an INFO"): "INFO PONG",
        transcript("* takes one token"): "MSG",
        transcript("HPUB"): "HMSG",
        transcript("verbose"): "+OK",
        transcript("unknown verb"): "-ERR",
        "unit/core/test_session.py::test_a_silent_peer_is_pinged_and_then_given_up": "PING",
    },
    "Options of CONNECT": {
        transcript("verbose"): "verbose",
        transcript("PUB with a wildcard subject, pedantic"): "pedantic",
        transcript("echo false"): "echo",
        transcript("headers are cut off for a client that knows none"): "headers",
        transcript("no responders"): "no_responders",
        transcript("CONNECT with tls_required as a string"): "tls_required",
        transcript("CONNECT of protocol 0 gets no second INFO"): "protocol",
        transcript("user and password"): "user pass",
        transcript("token"): "auth_token",
        "conformance/test_auth_nats_py.py::"
        "test_an_nkey_user_is_let_in_by_its_signature": "nkey sig",
        "conformance/test_tokens.py::test_a_user_of_an_account_is_let_in": "jwt",
        f"{VIEWS}test_an_open_connection_is_told_in_the_words_of_nats_server": "name lang version",
        transcript("CONNECT with an account"): "account",
        transcript("CONNECT with new_account"): "new_account",
    },
    "Headers of a traced message": {
        f"{TRACES}[a_message_is_traced_and_delivered]": "Nats-Trace-Dest",
        f"{TRACES}[a_dry_run_is_traced_only]": "Nats-Trace-Only",
        f"{TRACES}[a_traceparent_is_traced_where_the_account_says_so]": "traceparent",
        f"{TRACES}[traces_are_compressed_as_asked]": "Accept-Encoding",
        f"{TRACES}[a_hop_of_a_client_is_not_counted]": "Nats-Trace-Hop",
        f"{TRACES}[the_account_of_an_older_server_is_not_traced]": "Nats-Trace-Origin-Account",
    },
    "Transports": {
        f"{WAYS}[penstock-user-False]": "nats ws",
        f"{WAYS}[penstock-user-True]": "tls wss",
        "conformance/test_transports.py::test_clients_connect_over_ipv6": "::1",
    },
    "JetStream API, after `$JS.API.`": {
        "unit/jetstream/api/test_api.py::test_the_account_is_told_what_it_uses": "INFO",
        api("streams"): (
            "STREAM.CREATE STREAM.UPDATE STREAM.INFO STREAM.NAMES STREAM.LIST STREAM.DELETE "
            "STREAM.PURGE STREAM.MSG.GET STREAM.MSG.DELETE"
        ),
        api("consumers"): (
            "CONSUMER.CREATE CONSUMER.DURABLE.CREATE CONSUMER.INFO CONSUMER.DELETE "
            "CONSUMER.NAMES CONSUMER.LIST"
        ),
        "conformance/test_js_snapshots.py::test_a_stream_moves_with_its_consumers": (
            "STREAM.SNAPSHOT STREAM.RESTORE"
        ),
        deliveries("pause"): "CONSUMER.PAUSE CONSUMER.RESET",
        deliveries("priority_groups"): "CONSUMER.UNPIN",
        deliveries("pull"): "CONSUMER.MSG.NEXT",
        deliveries("direct_get"): "DIRECT.GET",
        deliveries("cluster_calls"): (
            "STREAM.LEADER.STEPDOWN STREAM.PEER.REMOVE STREAM.PEER.EVACUATE STREAM.CANCEL_MOVE "
            "CONSUMER.LEADER.STEPDOWN"
        ),
    },
    "Options of a stream": {
        api("streams"): "name subjects allow_rollup_hdrs",
        api("configurations"): "description num_replicas metadata",
        api("consumer_options"): "max_consumers",
        api("limits"): (
            "retention max_msgs max_bytes max_msgs_per_subject max_msg_size discard "
            "discard_new_per_subject deny_delete first_seq"
        ),
        f"{INTAKE}test_publish.py::test_a_sealed_stream_takes_nothing": "sealed",
        "unit/jetstream/test_stream.py::test_messages_go_when_they_are_too_old": "max_age",
        "unit/jetstream/test_engine.py::test_a_memory_stream_does_not_survive_a_restart": "storage",
        f"{INTAKE}test_publish.py::test_a_stream_without_acks_says_nothing": "no_ack",
        f"{INTAKE}test_publish.py::test_a_message_id_is_forgotten_after_the_window": (
            "duplicate_window"
        ),
        api("lifetimes"): "placement persist_mode",
        MIRROR: "mirror",
        f"{STORING}test_sources_say_where_they_are_from": "sources",
        "unit/jetstream/store/file/test_compression.py::test_a_stream_may_ask_for_it": (
            "compression"
        ),
        api("transforms"): "subject_transform",
        f"{STORING}test_what_is_stored_is_published_again": "republish",
        deliveries("direct_get"): "allow_direct",
        "unit/jetstream/copies/test_origins.py::test_a_mirror_answers_for_an_origin_that_is_gone": (
            "mirror_direct"
        ),
        api("updates"): "deny_purge",
        deliveries("consumer_limits"): "consumer_limits",
        f"{INTAKE}test_expiry.py::test_a_message_lives_as_long_as_it_says": "allow_msg_ttl",
        f"{STORING}test_the_last_message_of_a_subject_leaves_a_marker_that_goes": (
            "subject_delete_marker_ttl"
        ),
        api("counters"): "allow_msg_counter",
        api("atomic_batches"): "allow_atomic",
        f"{STORING}test_a_schedule_makes_a_message_when_it_is_due": "allow_msg_schedules",
        "conformance/test_js_fastbatch.py::test_a_fast_batch_is_answered_now_and_then": (
            "allow_batched"
        ),
    },
    "Options of a consumer": {
        api("consumers"): "durable_name name description metadata",
        deliveries("policies"): (
            "deliver_policy opt_start_seq opt_start_time ack_policy filter_subject "
            "filter_subjects replay_policy"
        ),
        f"{CONSUMER}test_what_is_not_acked_in_time_comes_again": "ack_wait",
        f"{CONSUMER}test_after_the_last_delivery_there_is_an_advisory": "max_deliver",
        f"{CONSUMER}test_backoff_says_how_long_to_wait_each_time": "backoff",
        f"{CONSUMER}test_no_more_than_max_ack_pending_are_on_their_way": "max_ack_pending",
        f"{CONSUMER}test_an_ephemeral_consumer_goes_when_nobody_uses_it": "inactive_threshold",
        f"{CONSUMER}test_consumers_in_memory_are_gone_after_a_restart": "mem_storage",
        "unit/jetstream/test_pause.py::test_a_rate_limit_spreads_messages_over_time": (
            "rate_limit_bps"
        ),
        "unit/jetstream/test_pause.py::test_a_part_of_the_acks_is_sampled": "sample_freq",
        f"{PULL}test_limits_of_the_consumer_are_enforced": (
            "max_waiting max_batch max_expires max_bytes"
        ),
        deliveries(
            "push"
        ): "deliver_subject deliver_group flow_control headers_only idle_heartbeat",
        api("consumer_configurations"): "num_replicas",
        "conformance/test_js_flow_control_acks.py::"
        "test_a_direct_consumer_is_in_no_list_and_holds_nothing_back": "direct",
        "unit/jetstream/config/test_consumer.py::"
        "test_a_consumer_that_serves_another_stream_is_private": "sourcing",
        deliveries("pause"): "pause_until",
        deliveries("priority_groups"): "priority_groups priority_policy",
        "unit/jetstream/consumers/test_priority.py::"
        "test_the_pin_passes_on_when_its_client_is_silent_for_too_long": "priority_timeout",
    },
    "Options of a mirror or a source": {
        MIRROR: "name filter_subject subject_transforms opt_start_seq",
        f"{ORIGINS}test_a_mirror_begins_at_a_time": "opt_start_time",
        f"{ORIGINS}test_a_consumer_of_the_operator_is_read_by": "consumer",
        f"{ORIGINS}test_an_origin_in_another_account_is_reached_by_imports": (
            "external.api external.deliver"
        ),
    },
    "Monitoring over HTTP": {
        "unit/net/monitor/test_monitor.py::test_the_first_page_lists_the_others": "/",
        "console/test_page.py::test_the_console_shows_what_the_server_does": "/console",
        "unit/net/monitor/console/test_feed.py::test_every_event_has_the_figures": "/eventz",
        "unit/net/monitor/watch/test_historyz.py::test_the_figures_of_the_server_have_an_hour": (
            "/historyz"
        ),
        "console/test_page.py::test_a_pipeline_is_known_by_its_last_report": "/pipelinez",
        "conformance/test_monitoring.py::test_varz_has_the_fields": "/varz",
        "conformance/test_monitoring.py::test_connz_has_the_fields": "/connz",
        "conformance/test_monitoring.py::test_subsz_has_the_fields": "/subsz /subscriptionsz",
        "conformance/test_jsz.py::test_jsz_says_the_same": "/jsz",
        "conformance/test_jsz.py::test_healthz_says_the_same": "/healthz",
        "unit/net/monitor/test_metrics.py::test_the_figures_are_those_of_the_server": "/metrics",
    }
    | {
        f"{PAGES}[{page}]": page
        for page in (
            *("/accountz", "/accstatz", "/leafz", "/routez", "/gatewayz", "/ipqueuesz"),
            *("/stacksz", "/debug/vars"),
        )
    },
    "Requests to the system": {
        "conformance/test_monitoring.py::test_a_client_is_told_the_same_about_itself": (
            "$SYS.REQ.USER.INFO"
        ),
        "conformance/test_system_matrix.py::test_a_kicked_client_is_gone": (
            "$SYS.REQ.SERVER.<id>.KICK"
        ),
        "conformance/test_system_matrix.py::test_one_client_may_be_told_to_go_elsewhere": (
            "$SYS.REQ.SERVER.<id>.LDM"
        ),
        "conformance/test_system_matrix.py::test_the_system_account_may_reload": (
            "$SYS.REQ.SERVER.<id>.RELOAD"
        ),
        f"{RESOLVER}test_an_account_that_is_pushed_is_there_at_once": (
            "$SYS.REQ.CLAIMS.UPDATE $SYS.REQ.CLAIMS.LIST $SYS.REQ.ACCOUNT.<account>.CLAIMS.LOOKUP"
        ),
        f"{RESOLVER}test_an_account_that_is_deleted_is_gone": "$SYS.REQ.CLAIMS.DELETE",
        f"{RESOLVER}test_all_tokens_come_one_by_one": "$SYS.REQ.CLAIMS.PACK",
        f"{RESOLVER}test_accounts_outlive_the_server": "$SYS.REQ.ACCOUNT.<account>.CLAIMS.UPDATE",
    }
    | {
        f"{QUESTIONS}[s-{subject.replace('<id>', '{id}').replace('<account>', 'A')}]": subject
        for subject in (
            *("$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ"),
            *("$SYS.REQ.ACCOUNT.PING.CONNZ", "$SYS.REQ.ACCOUNT.PING.STATZ"),
            *(
                f"$SYS.REQ.SERVER.<id>.{kind}"
                for kind in (
                    *("IDZ", "STATSZ", "VARZ", "CONNZ", "SUBSZ", "JSZ", "HEALTHZ", "ACCOUNTZ"),
                    *("LEAFZ", "ROUTEZ", "GATEWAYZ", "IPQUEUESZ", "RAFTZ", "EXPVARZ", "PROFILEZ"),
                )
            ),
            *(
                f"$SYS.REQ.ACCOUNT.<account>.{kind}"
                for kind in ("CONNZ", "SUBSZ", "INFO", "LEAFZ", "JSZ", "STATZ", "CONNS")
            ),
        )
    },
    "Directives": {
        "conformance/test_accounts.py::test_a_request_goes_over_and_its_answer_comes_back": (
            "accounts"
        ),
        f"{TLS}test_clients_without_tls_are_served_beside_those_with_it": "allow_non_tls",
        "conformance/test_auth_callout.py::test_the_service_says_who_somebody_is_and_where": (
            "authorization.auth_callout"
        ),
        transcript("default permissions"): "authorization.default_permissions",
        transcript("user and password"): "authorization.user authorization.password",
        transcript("no CONNECT in time"): "authorization.timeout",
        transcript("token"): "authorization.token",
        transcript("users: plain password"): "authorization.users",
        transcript("no_auth_user"): "no_auth_user",
        transcript("mappings"): "mappings",
        transcript("max subscriptions"): "max_subscriptions",
        transcript("control line one byte over the limit"): "max_control_line",
        transcript("PUB above max_payload"): "max_payload",
        transcript("a connection that never answers PING is stale"): "ping_interval ping_max",
        "conformance/test_self_description.py::"
        "test_an_advertised_address_takes_the_place_of_the_own_one": "client_advertise",
        "unit/net/test_server.py::test_websocket_clients_are_told_where_else_to_go": "no_advertise",
        f"{LOG}test_debug_and_trace_are_switched_on_apart": "debug trace",
        f"{LOG}test_the_time_can_be_left_out": "logtime",
        f"{LOG}test_the_time_can_be_utc": "logtime_utc",
        f"{LOG}test_a_file_is_appended_to": "log_file",
        f"{LOG}test_a_full_file_is_set_aside_and_the_oldest_go": "log_size_limit log_max_num",
        "conformance/test_transports.py::"
        "test_every_address_is_of_both_families_and_each_client_keeps_its_own": "host",
        f"{TLS}test_monitoring_is_offered_over_tls": "https",
        "conformance/test_domains.py::test_both_names_of_the_api_are_answered": "jetstream.domain",
        "unit/jetstream/test_engine.py::test_streams_may_not_reserve_more_than_there_is": (
            "jetstream.max_file jetstream.max_mem"
        ),
        f"{ORIGINS}test_a_mirror_has_what_its_origin_has_and_goes_on": "jetstream.remotes",
        "unit/net/test_committer.py::test_what_was_acked_is_there_after_a_restart": (
            "jetstream.store_dir jetstream.sync_interval"
        ),
        "conformance/test_core_rules.py::"
        "test_a_lame_duck_tells_clients_that_understand_it_and_takes_no_more": (
            "lame_duck_duration lame_duck_grace_period"
        ),
        f"{VIEWS}test_only_so_many_closed_connections_are_remembered": "max_closed_clients",
        "conformance/test_reload.py::test_too_many_connections_are_closed": "max_connections",
        "unit/net/test_checks.py::test_beyond_the_bound_clients_are_turned_away": (
            "max_password_checks"
        ),
        "unit/net/test_connection.py::test_a_reader_that_is_stuck_is_cut_off_at_max_pending": (
            "max_pending"
        ),
        "unit/net/test_connection.py::test_a_write_that_does_not_move_ends_at_the_deadline": (
            "write_deadline"
        ),
        f"{RESOLVER}test_an_account_that_is_pushed_is_there_at_once": "operator resolver",
        f"{RESOLVER}test_in_memory_an_account_that_is_known_may_change": "resolver_preload",
        f"{SERVE}test_pid_and_ports_files_live_as_long_as_the_server": "pid_file ports_file_dir",
        "conformance/test_proxy_protocol.py::test_a_proxy_says_whom_it_speaks_for": (
            "proxy_protocol"
        ),
        "conformance/test_system_matrix.py::"
        "test_the_system_account_is_told_who_comes_and_goes": "system_account",
        f"{TLS}test_an_old_client_and_its_cipher_suite_are_let_in": (
            "tls.allow_insecure_cipher_suites tls.cipher_suites"
        ),
        f"{TLS}test_a_client_without_a_valid_certificate_is_refused": "tls.ca_file tls.verify",
        f"{TLS}test_a_client_is_shown_the_certificate_that_it_asks_for": "tls.certs",
        f"{TLS}test_a_client_must_know_a_curve_of_the_server": "tls.curve_preferences",
        f"{TLS}test_a_foreign_client_sends_and_receives_over_tls": (
            "tls.cert_file tls.key_file tls.handshake_first tls.min_version"
        ),
        f"{TLS}test_too_many_handshakes_in_a_second_are_turned_away": "tls.connection_rate_limit",
        f"{TLS}test_only_pinned_keys_may_connect": "tls.pinned_certs",
        f"{TLS}test_a_handshake_that_does_not_come_about_ends_in_time": "tls.timeout",
        "conformance/test_auth_nats_py.py::"
        "test_verify_and_map_takes_the_user_from_the_certificate": "tls.verify_and_map",
        "conformance/test_tokens.py::"
        "test_the_operator_may_be_known_by_its_key_alone": "trusted_keys",
        "conformance/test_tokens.py::test_a_cookie_may_bring_the_token": "websocket.jwt_cookie",
        "conformance/test_auth_callout.py::"
        "test_who_brings_no_token_may_be_asked_about_as_well": "default_sentinel",
        f"{WEBSOCKET}test_web_pages_from_elsewhere_are_refused": (
            "websocket.allowed_origins websocket.same_origin"
        ),
        f"{WEBSOCKET}test_the_listener_may_have_a_user_of_its_own": (
            "websocket.authorization.user websocket.authorization.password "
            "websocket.authorization.token"
        ),
        f"{WEBSOCKET}test_compression_is_used_where_it_was_agreed_on": "websocket.compression",
        f"{WEBSOCKET}test_who_asks_for_nothing_is_let_go_of": "websocket.handshake_timeout",
        f"{WEBSOCKET}test_the_answer_has_the_headers_that_were_asked_for": "websocket.headers",
        f"{WEBSOCKET}test_info_is_that_of_the_listener": "websocket.listen websocket.no_tls",
        f"{WEBSOCKET}test_cookies_say_who_a_client_is": (
            "websocket.user_cookie websocket.pass_cookie websocket.token_cookie "
            "websocket.no_auth_user"
        ),
        f"{WEBSOCKET}test_a_foreign_client_sends_and_receives": (
            "websocket.tls.cert_file websocket.tls.key_file"
        ),
    },
    "Signals": {
        f"{SERVE}test_a_signal_stops_it_cleanly": "SIGINT SIGTERM",
        f"{SERVE}test_a_reload_is_confirmed": "SIGHUP",
        f"{SERVE}test_the_log_file_is_reopened_on_demand": "SIGUSR1",
        "conformance/test_core_rules.py::"
        "test_a_lame_duck_tells_clients_that_understand_it_and_takes_no_more": "SIGUSR2",
    },
}
"""For each section of the page: a test, and the rows that it holds."""


def proofs_of(title: str) -> dict[str, str]:
    """Return the test of each row of a section."""
    return {row: test for test, rows in PROOFS.get(title, {}).items() for row in rows.split()}
