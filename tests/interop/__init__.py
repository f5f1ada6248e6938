"""Tests of foreign client libraries and tools against a real broker process.

    amqp_client.py        interface of an AMQP client; one driver amqp_with_*.py for each library
    mqtt_client.py        interface of an MQTT client; one driver mqtt_with_*.py for each library
    client.py             time limit and login error of both interfaces
    node.py               the process that runs the Node.js libraries (tests/node)
    clients.py            all drivers by name
    recording_client.py   records the answers of a broker, to compare Trellis with RabbitMQ
    rabbitmq.py           the RabbitMQ process to compare with

Each driver uses its library as ordinary programs do, and contains no rule of the broker. Tests do
not sleep: a test that expects no message sends another message afterwards, and checks that this one
arrives first. Only the tests of heartbeats and pings wait; they are marked long.
"""
