"""Converts MQTT packets from bytes to values and back, at every protocol level.

Reading order:

    packets              fields of packets; packets of levels 3 and 4
    reasons, properties  reason codes and properties of MQTT 5
    packets5             packets of MQTT 5
    connect              CONNECT, and the will in it
    topics               rules for topic names and filters
    publish_properties   properties of a PUBLISH of MQTT 5
    content              encodings of the contents of messages, and their conversion to AMQP
    relay_formats        formats in which a PUBLISH is relayed unchanged
    stored               contents of messages in the store
    journal_codec        PUBLISH packets in a journal
"""
