// A client of amqplib: a connection with one confirm channel. Its methods are those of tests/interop/amqp_client.py.
'use strict';

const amqplib = require('amqplib');
const { Inbox } = require('./inbox.js');

class Client {
  constructor(connection, patience) {
    this.connection = connection;
    this.deliveries = new Inbox(patience);
    this.cancellations = new Inbox(patience);
    this.messages = new Map(); // delivery tag -> message, which amqplib needs for acknowledgements
    connection.on('error', () => {});
  }

  async open() {
    const channel = await this.connection.createConfirmChannel();
    channel.returned = false;
    channel.on('error', (error) => { channel.failure = error; });
    channel.on('return', () => { channel.returned = true; });
    this.channel = channel;
  }

  // Run a call on the channel. If the broker refuses the call and closes the channel, open a new channel and throw the error.
  async attempt(work) {
    const channel = this.channel;
    try {
      return await work(channel);
    } catch (error) {
      await new Promise(setImmediate); // the channel's 'error' event has the reply code and may follow the rejection
      if (!channel.failure) throw error;
      await this.open();
      throw channel.failure;
    }
  }

  close() {
    return this.connection.close();
  }

  declareExchange(name, kind, passive, durable) {
    return this.attempt(async (channel) => {
      if (passive) await channel.checkExchange(name);
      else await channel.assertExchange(name, kind, { durable });
    });
  }

  deleteExchange(name) {
    return this.attempt(async (channel) => { await channel.deleteExchange(name); });
  }

  declareQueue(name, passive, durable, exclusive, args) {
    return this.attempt(async (channel) => {
      const queue = passive ? await channel.checkQueue(name) : await channel.assertQueue(name, { durable, exclusive, arguments: args });
      return [queue.queue, queue.messageCount, queue.consumerCount];
    });
  }

  deleteQueue(name) {
    return this.attempt(async (channel) => (await channel.deleteQueue(name)).messageCount);
  }

  bind(queue, exchange, key, args) {
    return this.attempt(async (channel) => { await channel.bindQueue(queue, exchange, key, args); });
  }

  unbind(queue, exchange, key) {
    return this.attempt(async (channel) => { await channel.unbindQueue(queue, exchange, key); });
  }

  bindExchange(destination, source, key) {
    return this.attempt(async (channel) => { await channel.bindExchange(destination, source, key); });
  }

  unbindExchange(destination, source, key) {
    return this.attempt(async (channel) => { await channel.unbindExchange(destination, source, key); });
  }

  purge(queue) {
    return this.attempt(async (channel) => (await channel.purgeQueue(queue)).messageCount);
  }

  publish(body, key, exchange, mandatory, properties) {
    return this.attempt((channel) => new Promise((resolve, reject) => {
      channel.returned = false;
      channel.publish(exchange, key, Buffer.from(body, 'base64'), { ...properties, mandatory }, (error) => {
        if (error === null) resolve(channel.returned ? 'returned' : 'ack');
        else if (error.message === 'message nacked') resolve('nack');
        else reject(error);
      });
    }));
  }

  get(queue) {
    return this.attempt(async (channel) => {
      const message = await channel.get(queue);
      return message ? this.keep(message) : null;
    });
  }

  async prefetch(count) {
    await this.channel.prefetch(count);
  }

  consume(queue, args) {
    return this.attempt(async (channel) => {
      const tag = `node-${queue}`.slice(0, 255);
      await channel.consume(queue, (message) => {
        if (message === null) this.cancellations.put(tag);
        else this.deliveries.put(this.keep(message));
      }, { consumerTag: tag, arguments: args });
      return tag;
    });
  }

  async cancel(tag) {
    await this.channel.cancel(tag);
  }

  keep(message) {
    const { deliveryTag, exchange, routingKey, redelivered } = message.fields;
    this.messages.set(deliveryTag, message);
    return {
      body: message.content.toString('base64'), exchange, key: routingKey, redelivered,
      properties: message.properties, tag: deliveryTag,
    };
  }

  receive() {
    return this.deliveries.take();
  }

  cancelled() {
    return this.cancellations.take();
  }

  ack(tag, multiple) {
    this.channel.ack(this.messages.get(tag), multiple);
  }

  nack(tag, multiple, requeue) {
    this.channel.nack(this.messages.get(tag), multiple, requeue);
  }

  reject(tag, requeue) {
    this.channel.reject(this.messages.get(tag), requeue);
  }
}

async function connect(url, { external, ...options }, patience) {
  if (external) options.credentials = amqplib.credentials.external();
  const client = new Client(await amqplib.connect(url, options), patience);
  await client.open();
  return client;
}

module.exports = { connect };
