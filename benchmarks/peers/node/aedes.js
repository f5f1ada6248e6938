// Serves MQTT on HOST PORT with aedes, for benchmarks/peers.
//
// It differs from the library's defaults in these: Nagle's delay is off, messages may be unacknowledged up to the
// protocol's own limit (with QoS 2 a publisher that pipelines meets the default of 1,000), the heartbeat is rare.
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
