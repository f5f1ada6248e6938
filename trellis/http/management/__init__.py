"""The HTTP API: what RabbitMQ's management plugin answers, as far as tools ask for it, and what is
our own.

    api.py        the table of routes; who may ask; errors as JSON          answers.py  one question, and how it is answered
    paging.py     pages, sorting, columns: long lists are made in slices
    shapes.py     a queue, an exchange, a binding as JSON                   live.py     connections, channels, consumers
    overview.py   overview, nodes, whoami                                   health.py   checks
    names.py      vhosts, exchanges, queues, bindings, policies             people.py   users, permissions, rules about topics
    documents.py  definitions                                               ours.py     what `trellis list` asks

Everything runs on the broker's loop. What changes something is answered when it is durable.
"""
