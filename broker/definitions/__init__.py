"""Definitions: import and export in RabbitMQ's format, and the restore when the broker starts.

Reading order:

    restore    restores the broker from the store: definitions first, then messages
    objects    imports one object of a definitions document, and notes its differences
    rabbitmq   imports a document in RabbitMQ's JSON format, and reports
    trial      imports a document into a broker in memory: dry runs and `trellis doctor`
    exporting  exports definitions in RabbitMQ's JSON format

The store's catalog keeps the definitions (broker/store/catalog.py). trellis/server calls these
modules: recovery.py restores, and definitions_files.py reads and writes JSON documents.
"""
