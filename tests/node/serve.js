// Runs the Node.js client libraries for tests/interop: reads one JSON request per line and writes one JSON answer per line.
//
//   {"id": 1, "library": "amqplib", "client": "a", "call": "connect", "args": [...]}   connects the client "a"
//   {"id": 2, "client": "a", "call": "purge", "args": ["q"]}                           calls a method of the client "a"
//   {"id": 2, "result": 3}     or     {"id": 2, "error": {"message": "...", "code": 404}}
'use strict';

const readline = require('node:readline');

const libraries = { amqplib: require('./amqp.js').connect, mqtt: require('./mqtt.js').connect };
const clients = new Map();

async function answer({ library, client, call, args }) {
  if (call === 'connect') {
    clients.set(client, await libraries[library](...args));
    return null;
  }
  return clients.get(client)[call](...args);
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const request = JSON.parse(line);
  let reply;
  try {
    reply = { id: request.id, result: (await answer(request)) ?? null };
  } catch (error) {
    reply = { id: request.id, error: { message: error.message, code: error.code ?? null } };
  }
  process.stdout.write(JSON.stringify(reply) + '\n');
}).on('close', () => process.exit(0));
