"""Bridges: links that copy messages between this broker and other brokers.

    event loop                                        worker, a child process
    BridgeService  --Configure-->   BridgeWorker --> MqttLink   --> MqttEnd, a client of each broker
                   <--LinkReport--              --> ShovelLink --> AmqpEnd

The worker connects to both brokers as an ordinary client, so that a bridge cannot disturb the event
loop. The worker stores nothing: a message stays in its queue or session until the other broker has
accepted it. docs/bridges.md describes the bridges; docs/decisions/0028-bridges.md has the reasons.

Modules, in reading order:

    contract           the messages between service and worker, and the definitions of links
    definitions        settings --> definitions of bridges
    amqp_uri           the URI of an AMQP broker
    shovel_definition  parameters --> definitions of shovels and federation links
    collecting         finds the parameters and policies that define links
    service            the broker's end: configures the worker, keeps states and counts

In the worker:

    topic_map       renames topics between both brokers of a bridge
    mqtt_level      the version of MQTT that a bridge speaks to the remote broker
    mqtt_client     a client of paho-mqtt that the event loop drives
    mqtt_end        a connection to one MQTT broker
    echoes          publications that a broker of MQTT 3.1.1 sends back
    forwarding      one direction of a bridge
    mqtt_bridge     a bridge: two connections, two directions
    amqp_end        a connection to one AMQP broker
    shovel_message  the properties of a shovel's messages
    shovel          a shovel, or a link of a federated exchange
    worker          runs the links, and reports their states
"""
