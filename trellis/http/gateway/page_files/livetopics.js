// Topics of messages while they are published: like `trellis tail`, through a temporary queue.
import { ask, get, path } from './api.js';
import { el, number, size } from './dom.js';

const FETCHED = 500, FETCHES = 4, ROWS = 200, KNOWN = 50000, SECONDS = 10;
const swap = (text) => [...text].map((one) => ({ '/': '.', '.': '/' })[one] ?? one).join('');

// Topics by name, with the number of messages in each of the last SECONDS seconds.
class Seen {
  topics = new Map();
  names = new Set();
  fetched = 0;

  add(row) {
    const topic = swap(row.routing_key);
    this.fetched += 1;
    if (this.names.size < KNOWN) this.names.add(topic);
    if (!this.topics.has(topic)) {
      if (this.topics.size >= ROWS) return;
      this.topics.set(topic, { topic, counts: [0], total: 0 });
    }
    const one = this.topics.get(topic);
    one.counts[0] += 1;
    one.total += 1;
    one.value = row.payload_encoding === 'base64' ? size(row.payload_bytes) : row.payload;
  }

  tick() {
    for (const one of this.topics.values()) { one.counts.unshift(0); one.counts.length = Math.min(one.counts.length, SECONDS + 1); }
  }

  rows() {
    const speed = (one) => one.counts.slice(1).reduce((sum, count) => sum + count, 0) / Math.max(1, one.counts.length - 1);
    return [...this.topics.values()].map((one) => ({ ...one, speed: speed(one) })).sort((one, other) => one.topic.localeCompare(other.topic));
  }

  hidden() {
    const count = this.names.size - this.topics.size;
    if (!count) return '';
    return ` ${this.names.size >= KNOWN ? 'More than ' : ''}${number(count)} topics are not shown: give a narrower filter.`;
  }
}

// Calls `show` once a second with the topics that match a filter; returns a function that ends the calls.
export async function watch(view, vhost, filter, show) {
  const name = `trellis.page.${crypto.randomUUID?.() ?? Math.random().toString(36).slice(2)}`, at = ['queues', vhost, name];
  const seen = new Seen(), statusLine = el('p', { class: 'soft', role: 'status' }, 'Waiting for messages…');
  const key = filter.split('/').map((level) => (level === '+' ? '*' : swap(level))).join('.');
  let ended = false, timer = null, dropped = 0;
  await ask('PUT', path(...at), { durable: false, arguments: { 'x-expires': 60000, 'x-max-length': FETCHED * FETCHES, 'x-max-length-bytes': 16 << 20 } });
  await ask('POST', path('bindings', vhost, 'e', 'amq.topic', 'q', name), { routing_key: key, arguments: {} });
  view.replaceChildren(statusLine);
  const load = async () => {
    for (let fetches = 0; fetches < FETCHES && !ended; fetches += 1) {
      const fetched = await ask('POST', path(...at, 'get'), { count: FETCHED, ackmode: 'ack_requeue_false', encoding: 'auto', truncate: 200 });
      fetched.forEach((row) => seen.add(row));
      if (fetched.length < FETCHED) break;
    }
    const queue = await get(at);
    dropped = Math.max(dropped, (queue.message_stats?.publish ?? 0) - seen.fetched - queue.messages);
    seen.tick();
  };
  const draw = () => {
    statusLine.textContent = !seen.fetched ? 'No message has arrived yet.' : `${number(seen.fetched)} messages of ${number(seen.names.size)} topics.${seen.hidden()}${dropped ? ` ${number(dropped)} messages are not shown, because they came too fast for this view.` : ''}`;
    show(seen.rows());
  };
  const turn = async () => {
    try { await load(); if (!ended) draw(); } catch (error) { statusLine.textContent = error.message; ended = true; }
    if (!ended) timer = setTimeout(turn, 1000);
  };
  turn();
  return () => {
    ended = true;
    clearTimeout(timer);
    ask('DELETE', path(...at)).catch(() => null);  // If this fails, the broker deletes the queue after a minute (x-expires).
  };
}
