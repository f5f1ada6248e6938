"""Definitions: import and export in RabbitMQ's format, and the restore when the broker starts.

Reading order:

    restore    restores the broker from the store: definitions first, then messages
    session_restorer
               the interface through which the restore gives sessions back to their front end
    objects    imports one object of a definitions document, and lists the parts of the object that
               Trellis leaves out, or that have another effect than in RabbitMQ
    rabbitmq   imports a document in RabbitMQ's JSON format, and makes a report: which objects were
               imported, refused or changed
    changes    the existing objects that an import changes
    trial      imports a document into a broker in memory: dry runs and `trellis doctor`
    exporting  exports definitions in RabbitMQ's JSON format

The store's catalog keeps the definitions (broker/store/catalog.py). trellis/server calls these
modules: recovery.py restores, and definitions_files.py reads and writes JSON documents.
"""
