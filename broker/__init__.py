"""The broker's core: virtual hosts, exchanges, bindings, queues, messages, store.

The core knows no protocol.

Publishing has two parts. The first part runs once for each user, exchange and routing key: a
Planner finds the destinations, the permissions and the durable queues. The result is a Plan, which
many Routes share. The second part, the hot path, runs for each message: a protocol front end looks
up the Route by the bytes that it received, and delivers the message to the destinations of the
Route's Plan. A message with a feature that the plan's `slow_path_mask` names takes the slow path
instead. Nothing in the core reads a clock, draws a random number or waits; only `store` opens
files.

Folders, from the ground up; each folder imports only folders above it in this list:

    messages/       a message, its fates, the output buffer of a connection
    store/          the log of messages, the catalog of definitions, recovery
    queues/         queues and their limits, consumers, arguments, policies
    access/         identities, topic rules, users
    stream/         queues that keep their messages: segments, offsets, retention
    replication/    the rules of the replicated log, which standbys follow
    routing/        exchanges, bindings, plans and routes, the cache of routes
    vhost/          virtual hosts: declarations, publishing, retained messages, dead letters
    broker          all virtual hosts, and the parts that they share
    definitions/    import, export and restoring of definitions

The other modules are agenda (deferred work and timers), compatibility (what differs from RabbitMQ's
definitions), limits, alarms, errors, eviction, lease (the time for which the active node may act),
names (the check of names), nesting (the bound on nested values) and patterns (regular expressions).

Reading order: messages/message, messages/outlet, agenda, store/contract, queues/destination,
queues/consumer, messages/fates, queues/queue, queues/limited, routing/route, routing/binding,
routing/exchanges/base, access/identity, routing/publish_context, routing/planner, vhost/vhost,
broker, definitions/restore.
"""
