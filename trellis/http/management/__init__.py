"""The HTTP API: the parts of RabbitMQ's management API that its tools use, and Trellis's own paths.

    api.py          the table of routes, authorization, errors as JSON
    answers.py      requests, encoding of responses
    overview.py     overview, nodes, current user
    health.py       health checks
    topology.py     virtual hosts, exchanges, queues
    bindings.py     bindings
    routing.py      where a message would go, for `trellis route`
    policies.py     policies
    consequences.py consequences of deletions; policy_change.py: of a policy
    right_consequences.py  rights that are lost if permissions, rules or roles are set;
                    right_changes.py compares two grants
    parameters.py   parameters, global parameters and operator policies
    limits.py       limits of virtual hosts and users
    messages.py     fetch and publish messages
    rates.py        rates of counters, from the counters in earlier answers
    users.py        users
    permissions.py  permissions and topic permissions of users
    topic_rules.py  topic rules of users
    connections.py  connections, channels, consumers
    definitions.py  definitions documents
    streaming.py    streams and their segments
    peeking.py      waiting messages of a queue, without a change of the queue
    moving.py       moves of messages between queues
    retaining.py    retained messages
    diagnosis.py    problems of a queue or a client, for `trellis why`
    tracing.py      traces of messages
    roles.py        roles, which many users share
    readers.py      the users that may read topics of a topic filter
    stream_rows.py  rows of a stream as JSON
    links.py        shovels and federation links
    page.py         sessions and state of the web page
    paged.py        one page of a long list
    extensions.py   rows for `trellis list`, delayed messages
    serializers.py  queues, exchanges, bindings and policies as JSON

All handlers run on the broker's event loop. A request that changes something is answered when the
change is durable. Long lists are made in slices. A handler refuses a request by an ApiRefusal or an
error of the broker, such as NotFound, which `refusal_of` (answers.py) turns into a status.
"""
