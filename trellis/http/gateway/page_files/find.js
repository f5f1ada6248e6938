import { get } from './api.js';
import { commandLine, containing, el, line, link, number, table } from './dom.js';

const SHOWN = 20;

// Returns the rows of a short list whose name contains the text, in the form of a page of a longer list.
async function among(path, needle, nameOf = (row) => row.name) {
  const matching = (await get(path)).filter((row) => nameOf(row).includes(needle));
  return { items: matching.slice(0, SHOWN), filtered_count: matching.length };
}

// Lists the objects whose names contain the text, by kind, each kind with the command that lists the same objects. A kind that the user
// may not see is left out.
export async function show(view, needle) {
  view.append(el('h1', {}, `Search for “${needle}”`));
  const page = { page: 1, page_size: SHOWN }, query = { ...page, name: needle, sort: 'name' };
  const list = (kind, column) => line('list', kind, ...containing(column, needle));
  const kinds = [
    ['Queues', () => get(['queues'], { ...query, sessions: false }), (row) => link(['queue', row.vhost, row.name], row.name), list('queues', 'name')],
    ['Connections', () => get(['connections'], query), (row) => link(['client', row.name], row.name), list('connections', 'peer')],
    ['Consumers', () => get(['trellis', 'consumers'], query), (row) => ['consumer ', el('b', {}, row.name), ' of queue ', link(['queue', row.vhost, row.queue], row.queue)], list('consumers', 'consumer_tag')],
    ['Sessions', () => get(['trellis', 'sessions'], query), (row) => link(['client', row.client_id], row.client_id), list('sessions', 'client_id')],
    ['Exchanges', () => get(['exchanges'], query), (row) => row.name || 'amq.default', list('exchanges', 'name')],
    ['Bindings', () => get(['bindings'], { ...page, default: false, key: needle, sort: 'routing_key' }), (row) => ['“', el('b', {}, row.routing_key), `” of ${row.source} to ${row.destination_type} ${row.destination}`], list('bindings', 'routing_key')],
    ['Streams', () => among(['streams'], needle), (row) => link(['stream', row.vhost, row.name], row.name), line('stream', 'list')],
    ['Retained topics', () => get(['trellis', 'retained'], query), (row) => row.topic, list('retained', 'topic')],
    ['Topics of the last hour', () => get(['trellis', 'topics'], query), (row) => row.routing_key, list('topics', 'routing_key')],
    ['Users', () => among(['users'], needle), (row) => link(['client', row.name], row.name), list('users', 'name')],
    ['Roles', () => get(['roles'], query), (row) => link(['access'], row.name), line('roles', 'list')],
    ['Policies', () => among(['policies'], needle), (row) => row.name, list('policies', 'name')],
    ['Virtual hosts', () => among(['vhosts'], needle), (row) => row.name, line('vhosts', 'list')],
    ['Settings', () => among(['trellis', 'settings'], needle), (row) => link(['node'], row.name), list('settings', 'name')],
  ];
  const results = await Promise.all(kinds.map(([, load]) => load().catch(() => null)));
  let any = false;
  kinds.forEach(([title, , name, command], at) => {
    const part = results[at];
    if (!part?.items.length) return;
    any = true;
    view.append(el('h2', {}, title), table(`${number(part.items.length)} of ${number(part.filtered_count)}`, [['name', name], ['vhost', (row) => row.vhost ?? '']], part.items, ''), commandLine(command));
  });
  if (!any) view.append(el('p', { class: 'soft' }, 'No object has a name with this text.'), commandLine(list('queues', 'name')));
  if (/^\S+$/.test(needle)) view.append(el('p', {}, link(['client', needle], `What is known about a client, a user or an address ${needle}?`)));
}
