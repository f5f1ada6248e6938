"""AMQP connections: frames, handshake, closing, and the table of channel methods.

Reading order:

    states       the states of a connection
    handshake    protocol header, login, tuning
    closing      the ways in which a connection or a channel ends
    channels     the channels of a connection
    methods      the handler of each method on a channel
    connection   one connection: divides the input into frames, and calls the handlers
"""
