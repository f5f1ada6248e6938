"""Routing: from an identity, an exchange and a routing key to the queues that get a message.

Reading order: route, plan, publish_context (the route cache), planner (a miss of the cache),
binding, exchanges, subscriber, relay. Beside them: authorization (permissions to declare and
bind), equivalence (a repeated declaration), deduplication (idempotent producers), prewarming and
topology_stream.

For operators: explanation (where a message would go), match_reasons, queue_verdicts, near_misses,
near_key_filter and key_differences.
"""
