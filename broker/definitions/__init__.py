"""Definitions: import and export in RabbitMQ's format, and the restore when the broker starts.

Reading order:

    restore    restores the broker from the store: definitions first, then messages
    rabbitmq   imports and exports definitions in RabbitMQ's JSON format

The store's catalog keeps the definitions (broker/store/catalog.py). trellis/server calls both
modules: recovery.py restores, and definitions_files.py reads and writes JSON documents.
"""
