import { get } from './api.js';
import { el, link, number, table } from './dom.js';

const SHOWN = 20;

// Returns the rows of a short list whose name contains the text, as a page of a longer list has them.
async function among(path, needle, nameOf = (row) => row.name) {
  const found = (await get(path)).filter((row) => nameOf(row).includes(needle));
  return { items: found.slice(0, SHOWN), filtered_count: found.length };
}

// Lists the objects whose names contain the text, by kind. A kind that the user may not see is left out.
export async function show(view, needle) {
  view.append(el('h1', {}, `Found: ${needle}`));
  const query = { page: 1, page_size: SHOWN, name: needle, sort: 'name' };
  const kinds = [
    ['Queues', () => get(['queues'], { ...query, sessions: false }), (row) => link(['queue', row.vhost, row.name], row.name)],
    ['Connections', () => get(['connections'], query), (row) => link(['client', row.name], row.name)],
    ['Sessions', () => get(['trellis', 'sessions'], query), (row) => link(['client', row.client_id], row.client_id)],
    ['Exchanges', () => get(['exchanges'], query), (row) => row.name || 'amq.default'],
    ['Streams', () => among(['streams'], needle), (row) => link(['stream', row.vhost, row.name], row.name)],
    ['Topics of the last hour', () => get(['trellis', 'topics'], query), (row) => row.routing_key],
    ['Users', () => among(['users'], needle), (row) => link(['client', row.name], row.name)],
    ['Policies', () => among(['policies'], needle), (row) => row.name],
    ['Virtual hosts', () => among(['vhosts'], needle), (row) => row.name],
    ['Settings', () => among(['trellis', 'settings'], needle), (row) => link(['node'], row.name)],
  ];
  const found = await Promise.all(kinds.map(([, load]) => load().catch(() => null)));
  let any = false;
  kinds.forEach(([title, , name], at) => {
    const page = found[at];
    if (!page?.items.length) return;
    any = true;
    view.append(el('h2', {}, title), table(`${number(page.items.length)} of ${number(page.filtered_count)}`, [['name', name], ['vhost', (row) => row.vhost ?? '']], page.items, ''));
  });
  if (!any) view.append(el('p', { class: 'soft' }, 'No name contains this text.'));
  if (/^\S+$/.test(needle)) view.append(el('p', {}, link(['client', needle], `What is known about a client, a user or an address ${needle}?`)));
}
