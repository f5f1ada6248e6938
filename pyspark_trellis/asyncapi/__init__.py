"""Exports observed topics, bindings and content types as an AsyncAPI 3 document.

    addresses     topics -> addresses with parameters, such as sensors.{sensor}.temperature
    schemas       observed JSON values -> a JSON Schema
    observations  the topics of a journal, with protocols, publishers, content types and samples
    receivers     the queues and MQTT subscriptions to which the topics go
    rendering     the parts of the document, and the rules of its names
    document      all parts -> the document
    exporting     `trellis asyncapi`

docs/asyncapi.md has the rules for users.
"""
