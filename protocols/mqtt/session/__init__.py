"""MQTT sessions: subscriptions, inbox, messages in flight, wills, and what is sent to clients.

Reading order:

    interfaces                          what a session uses of a connection, and others
    session                             the session of one client identifier
    subscription_options, subscriptions its subscriptions
    inflight                            its packet identifiers in use
    publish_writer, inbox_consumer      its messages on the way to the client
    early_outlet                        its messages before the CONNACK
    retained_delivery                   retained messages for a new subscription
    sessions                            all sessions of a broker
    deadlines, wills                    expiring sessions, delayed wills
    shared                              shared subscriptions
    restoring                           sessions after a restart
    sys_topics                          publications under $SYS
"""
