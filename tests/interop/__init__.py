"""Foreign clients against a real broker process.

    amqp_client.py   what a test asks of an AMQP client; one amqp_with_*.py per library answers it
    mqtt_client.py   the same for MQTT, with mqtt_with_*.py
    client.py        what both share
    node.py          the process that the libraries of Node run in (tests/node)
    clients.py       all of them by name

Each driver uses its library as its users do, and holds no rule of the broker. No test waits for
time to pass: that something does not come is seen by what is sent after it and comes. (Heartbeats
and pings excepted: marked long.)
"""
