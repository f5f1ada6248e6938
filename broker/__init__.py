"""The broker's model: virtual host, exchange, binding, queue, message, store. Knows no protocol.

Theory of operation. Publishing has a cold side and a hot side. The cold side is the Planner: given
an identity, an exchange and a routing key it finds out everything that can be known before a
message comes and writes it down in a Plan, which many Routes share. The hot side, in a front end,
looks the Route up by the octets that came off the wire, follows it, and asks for care only where
the Plan's `attention` mask says so. Nothing here reads a clock, draws a number or waits; only
`store` opens files.

Reading order: message, outlet, agenda, store.contract, destination, consumer, fates, queue, limits,
route, binding, exchange, access, gate, planner, retained, letters, holdings, vhost, core, restore.
(queue stands on fifo and tail.)
"""
