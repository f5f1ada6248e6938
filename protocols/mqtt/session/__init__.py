"""MQTT sessions: subscriptions, inbox, messages in flight, wills, and deliveries to clients.

Reading order:

    interfaces             interfaces of the objects that a session uses
    session                the session of one client identifier
    subscription_options   options of a subscription
    subscriptions          all subscriptions of a session
    packet_id_set          a set of packet identifiers
    inflight               packet identifiers of a session that are in use
    exactly_once           acknowledgements of QoS 2
    resending              sends the messages in flight again after a reconnect
    publish_writer         writes PUBLISH packets to a client
    shared_deliveries      attaches, drains and detaches shared subscriptions in slices
    inbox_consumer         delivers the messages of a session's inbox to its client
    early_outlet           holds messages for a client until its CONNACK is sent
    retained_delivery      delivers retained messages to a new subscription
    sessions               all sessions of a broker
    deadlines              timers of expiring sessions and delayed wills
    wills                  wills of clients
    shared                 shared subscriptions
    restoring              restores sessions after a restart
    sys_topics             publishes counters under $SYS
"""
