"""Exports observed topics, bindings and content types as an AsyncAPI 3 document.

    addresses     topics -> addresses with parameters, such as sensors.{sensor}.temperature
    schemas       observed JSON values -> a JSON Schema
    observations  the topics of a journal, with protocols, publishers, content types and samples
    receivers     the queues and MQTT subscriptions that the topics reach
    rendering     servers, messages and parameters as parts of the document, and valid names
    document      observations and receivers -> the document
    exporting     the export that `trellis asyncapi` runs

docs/asyncapi.md explains the rules to users.
"""
