"""Messages: a published message, the output buffer of a connection, the fates of copies.

Reading order:

    message      a message: address, content, encoding, expiry
    outlet       the output buffer of a connection, to which consumers write messages
    fates        the ways in which a message, or a copy of it in a queue, can end
    cc_headers   further routing keys of one message: headers CC and BCC
    x_death      the headers of a dead letter, and the check for a dead letter cycle
    tracing      marks of messages that a trace follows
    memory       estimates of the memory that messages take
"""
