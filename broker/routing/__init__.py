"""Routing: from an identity, an exchange and a routing key to the queues that get a message.

Reading order: route, plan, publish_context (the route cache), planner (a miss of the cache),
plan_search (the search for destinations), plan_index, binding, exchanges, subscriber, relay.

Other modules: authorization (permissions to declare and bind), equivalence (a repeated
declaration), deduplication (idempotent producers) and owner_table (their sequence numbers by user),
resolved_targets (the destinations of a transaction's messages), prewarming, topology_stream and
topic_groups (counters of unroutable messages).

For operators: tracing (follows messages), explanation (where a message would go),
matching_bindings, match_reasons, queue_verdicts, near_misses, binding_chunks, near_key_filter and
key_differences; topic_history (the topics of the last hour) and binding_trial (the messages that
queues would gain or lose if bindings changed).
"""
