// Serves MQTT on HOST PORT with aedes, for benchmarks/peers.
//
// Settings that differ from the library's defaults: Nagle's delay is off, unacknowledged messages are limited only by the
// protocol (a pipelining QoS 2 publisher reaches the default of 1,000), and the heartbeat is rare.
"use strict";

const net = require("node:net");

const [host, port] = process.argv.slice(2);

async function serve() {
  const { Aedes } = await import("aedes");
  const broker = await Aedes.createBroker({ maxInflightInbound: 65535, heartbeatInterval: 3600000 });
  const server = net.createServer({ noDelay: true }, broker.handle);
  server.listen({ host, port: Number(port), backlog: 4096 });
  process.on("SIGTERM", () => process.exit(0));
}

serve().catch((error) => {
  console.error(`aedes: ${error.message}`);
  process.exit(1);
});
