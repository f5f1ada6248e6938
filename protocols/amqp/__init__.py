"""The AMQP 0-9-1 front end.

Reading order: errors, options; codec/ (frames, tables, properties, contents, assembly); channel/
(consumer, receiver, confirms, publisher, channel); connection/ (states, handshake, closing,
channels, methods, connection); front.

    AmqpFront --> AmqpConnection --> Channel --> ChannelPublisher --> VirtualHost.publish
                  |- Handshake              `--> ChannelReceiver  --> Queue.subscribe, settle
                  |- Closing                     `- AmqpConsumer <--- Queue
                  `- ChannelTable

codec/ converts between bytes and values and keeps no state of a client. channel/ handles the
methods of one channel: publish, consume, settle, confirm, transactions. connection/ divides the
input into frames, and passes each method to its channel. Imports run from connection/ to channel/
to codec/; a channel uses its connection through channel/connection_interface.py.

Theory of operation
- Three methods occur for every message, and are not decoded into objects. AmqpConnection._parse
  handles basic.publish with its content, and basic.ack, in place; AmqpConsumer writes basic.deliver
  byte by byte. The library pamqp has the fields of all other methods, and encodes these methods.
- A content is relayed as one slice of the input, with all its frames. `Frames` is the encoding of a
  content; each pair of channel number and frame_max has one such object. So a comparison with `is`
  tells a consumer whether to send the slice unchanged or to make other frames (codec/contents.py).
- Routes are cached under the bytes of exchange and routing key in basic.publish. The plan of a
  route tells if a publication may take the fast path; all others go to ChannelPublisher.publish.
- Replies and confirms keep their order. A reply to a method that changes durable definitions waits
  for the store, and its connection is stalled meanwhile (Connection.reply_when_durable). Confirms
  wait without a stall (channel/confirms.py).
- Errors are exceptions (AmqpError, or BrokerError from the core) that end the channel or the
  connection. All ways to close are in one table: connection/closing.py.
- A part of a connection has no reference to the connection, or drops this reference when the
  connection closes. So a closed connection is freed without the garbage collector.
"""
