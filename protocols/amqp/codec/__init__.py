"""Converts AMQP frames, field tables, properties and contents from bytes to values and back.

Reading order:

    tables          field tables: values with a type
    frames          frames, and the methods in them
    properties      the properties of a message, such as priority and headers
    contents        a message as header frame and body frames
    assembly        a content whose frames arrive in several chunks
    stored          contents in the store
    journal_codec   contents in a stream
"""
