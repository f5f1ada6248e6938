import { get } from './api.js';
import { el, link, number, table } from './dom.js';

// Lists the queues, connections, sessions and exchanges whose names contain the text.
export async function show(view, needle) {
  view.append(el('h1', {}, `Found: ${needle}`));
  const query = { page: 1, page_size: 20, name: needle, sort: 'name', sessions: false };
  const kinds = [
    ['Queues', ['queues'], (row) => link(['queue', row.vhost, row.name], row.name)],
    ['Connections', ['connections'], (row) => link(['client', row.name], row.name)],
    ['Sessions', ['trellis', 'sessions'], (row) => link(['client', row.client_id], row.client_id)],
    ['Exchanges', ['exchanges'], (row) => row.name || 'amq.default'],
  ];
  for (const [title, path, name] of kinds) {
    const found = await get(path, query).catch(() => ({ items: [], filtered_count: 0 }));
    view.append(el('h2', {}, title), table(`${number(found.items.length)} of ${number(found.filtered_count)}`, [['name', name], ['vhost', (row) => row.vhost ?? '']], found.items, 'None.'));
  }
  if (/^\S+$/.test(needle)) view.append(el('p', {}, link(['client', needle], `What is known about a client, a user or an address ${needle}?`)));
}
