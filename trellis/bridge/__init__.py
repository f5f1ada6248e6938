"""Bridges: links that copy messages between this broker and other brokers.

    event loop                                        worker, a child process
    BridgeService  --Configure-->   Worker --> MqttLink --> MqttEnd, a client of each broker
                   <--LinkReport--

The worker connects to both brokers as an ordinary client, so that a bridge cannot disturb the event
loop. It keeps nothing: a message stays in its queue or session until the other broker has accepted
it. docs/bridges.md describes the bridges; docs/decisions/0024-bridges.md has the reasons.

Modules, in reading order:

    contract        the messages between service and worker, and the definitions of links
    definitions     settings --> definitions
    service         the broker's end: configures the worker, keeps states and counts

In the worker:

    topic_map       renames topics between both brokers
    mqtt_end        a connection to one broker
    forwarding      one direction of a bridge
    mqtt_bridge     a bridge: two connections, two directions
    worker          runs the links, and reports their states
"""
