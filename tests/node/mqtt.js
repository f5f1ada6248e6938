// A client of MQTT.js. Its methods are those of tests/interop/mqtt_client.py.
'use strict';

const mqtt = require('mqtt');
const { Inbox } = require('./inbox.js');

class Client {
  constructor(client, patience) {
    this.client = client;
    this.inbox = new Inbox(patience);
    client.on('message', (topic, payload, { qos, retain }) => {
      this.inbox.put({ topic, payload: payload.toString('base64'), qos, retain });
    });
    this.closed = new Promise((resolve) => { client.once('close', resolve); });
    this.connected = new Promise((resolve, reject) => {
      client.once('connect', (packet) => {
        this.sessionPresent = packet.sessionPresent;
        resolve();
      });
      client.on('error', reject);
    });
  }

  present() {
    return this.sessionPresent;
  }

  async subscribe(filter, qos) {
    const [granted] = await this.client.subscribeAsync(filter, { qos });
    return granted.qos;
  }

  async unsubscribe(filter) {
    await this.client.unsubscribeAsync(filter);
  }

  async publish(topic, payload, qos, retain) {
    await this.client.publishAsync(topic, Buffer.from(payload, 'base64'), { qos, retain });
  }

  receive() {
    return this.inbox.take();
  }

  async disconnect() {
    await this.client.endAsync();
  }

  // Drop the connection without a DISCONNECT packet.
  async abort() {
    this.client.stream.destroy();
    await this.closed;
  }

  async waitUntilClosed() {
    await this.closed;
  }
}

async function connect(url, options, patience) {
  const client = new Client(mqtt.connect(url, { ...options, reconnectPeriod: 0 }), patience);
  await client.connected;
  return client;
}

module.exports = { connect };
