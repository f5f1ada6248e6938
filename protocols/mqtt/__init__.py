"""The front end for MQTT 3.1, 3.1.1 and 5.

    codec        converts packets and properties to bytes and back, contents for AMQP and storage
    session      sessions: the state that outlives a connection, and deliveries to clients
    connection   connections: login, packets from clients, acknowledgements, closing
    front        the front end, which makes a connection for each client

An MqttConnection belongs to one client. Its handler reads the input: first a Login, which takes the
CONNECT, asks the authenticator, and finds or creates the Session; then a Level3Handler, a
Level4Handler or a Level5Handler, by the protocol level in the CONNECT. These three classes are
PacketHandlers, whose loop reads publications of all levels.

    client --> MqttConnection --> PacketHandler --> Route, Plan (the core)
                    |                  `--> PublishReplies: PUBACK, PUBREC for durable messages
                    `--> Session <-- the core
                             |--> SessionSubscriptions: bindings, options, shared subscriptions
                             |--> inbox (Queue) --> InboxConsumer --> PublishWriter --> client
                             `--> InflightWindow: packet identifiers that are in use

A message of QoS 0 goes directly to the connection of a session. The publisher's packet is relayed
unchanged if publisher and subscriber use the same packet format: that of levels 3 and 4, or that of
level 5. Every other message goes through the session's inbox, a queue of the core, and gets its
packet identifier from its sequence number in the inbox.

Reading order. For packets: codec/packets.py, codec/properties.py, codec/packets5.py,
codec/connect.py, codec/content.py. For sessions: session/session.py, session/inbox_consumer.py,
session/publish_writer.py, session/sessions.py, then session/shared.py and session/wills.py. For
connections: connection/connection.py, connection/closing.py, connection/login.py,
connection/packet_handler.py, connection/level5.py, connection/subscribing.py.
"""
