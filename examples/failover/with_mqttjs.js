// MQTT.js: a publisher and a subscriber that continue at the other node after a failover.
//
//     node with_mqttjs.js HOST:PORT HOST:PORT

const mqtt = require("mqtt");

const servers = process.argv.slice(2, 4).map((address) => {
  const [host, port] = address.split(":");
  return { host, port: Number(port), protocol: "mqtt" };
});

// The library tries the servers in turn. A standby refuses the connection: without
// reconnectOnConnackError, the library would then give up.
function client(clientId) {
  const options = { clean: false, keepalive: 10, reconnectPeriod: 200, reconnectOnConnackError: true };
  return mqtt.connect({ servers, clientId, ...options }).on("error", () => {});
}

const subscriber = client("subscriber");
subscriber.on("connect", () => subscriber.subscribe("work/#", { qos: 1 }));
subscriber.on("message", (_, body) => console.log(`received ${body}`));

// The library publishes a message again if the connection is lost before its confirm.
const publisher = client("publisher");
function publish(number) {
  publisher.publish("work/numbers", String(number), { qos: 1 }, () => {
    console.log(`confirmed ${number}`);
    publish(number + 1);
  });
}
subscriber.once("connect", () => publish(0));
