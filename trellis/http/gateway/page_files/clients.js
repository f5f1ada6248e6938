import { ask, get, path } from './api.js';
import { age, agree, commandLine, el, inVhost, line, link, number, size, table } from './dom.js';
import { findings } from './findings.js';
import { pager } from './pager.js';

export const title = 'Clients';
const SHOWN = 50;
export async function show(view) {
  view.append(el('h1', {}, 'Clients'), el('h2', {}, 'Connections'));
  const ends = [pager(view, 'connection', 'connected_at', (query) => get(['connections'], query), () => [
    ['name', (row) => link(['client', row.name], row.user_provided_name || row.variable_map?.client_id || row.name), '', 'name'], ['state', (row) => el('span', { class: row.state === 'blocked' ? 'warn' : '' }, row.state), 'k', 'state'], ['received', (row) => size(row.recv_oct), 'n', 'recv_oct'], ['sent', (row) => size(row.send_oct), 'n', 'send_oct'], ['unsent', (row) => size(row.send_pend), 'n', 'send_pend'],
    // A narrow screen shows the first columns only; the others come with scrolling.
    ['user', (row) => row.user, '', 'user'], ['protocol', (row) => row.protocol, '', 'protocol'], ['address', (row) => `${row.peer_host}:${row.peer_port}`],
    ['since', (row) => age((Date.now() - row.connected_at) / 1000), 'n', 'connected_at'],
  ], 'No client is connected.', 'connections', { name: 'peer', connected_at: 'since', recv_oct: 'octets_in', send_oct: 'octets_out', send_pend: 'unsent' })];
  const sessions = el('section', {}, el('h2', {}, 'MQTT sessions'));
  view.append(sessions);
  ends.push(pager(sessions, 'session', 'queued', (query) => get(['trellis', 'sessions'], query), () => [
    ['client identifier', (row) => link(['client', row.client_id], row.client_id), '', 'name'], ['connected', (row) => (row.connected ? 'yes' : 'no'), 'k', 'connected'], ['waiting', (row) => number(row.queued), 'n', 'queued'], ['in flight', (row) => number(row.in_flight), 'n', 'in_flight'], ['dropped', (row) => number(row.dropped), 'n', 'dropped'],
    ['subscriptions', (row) => number(row.subscriptions), 'n', 'subscriptions'], ['vhost', (row) => row.vhost, '', 'vhost'],
  ], 'There is no MQTT session.', 'sessions', { name: 'client_id' }));
  return () => ends.forEach((end) => end());
}

export async function one(view, name) {
  const about = el('div'), rest = el('div');
  view.append(el('h1', {}, `Client ${name}`), el('h2', {}, 'What is wrong?'), about, rest, commandLine(line('why', 'client', name)));
  findings(about, get(['why', 'clients', name]));
  const load = async () => {
    const exactly = `^${name.replace(/[^\w ]/g, '\\$&')}$`;
    const sessions = (await get(['trellis', 'sessions'], { page: 1, page_size: 100, name: exactly, use_regex: true })).items.filter((row) => row.client_id === name);
    const page = await get(['connections'], { client: name, page: 1, page_size: SHOWN }), connections = page.items;
    rest.replaceChildren(el('h2', {}, 'Connections'), table(`${number(connections.length)} of ${number(page.total_count)} open connections of the client`, [
      ['name', (row) => row.name], ['user', (row) => row.user], ['protocol', (row) => row.protocol], ['state', (row) => row.state],
      ['', (row) => el('button', { type: 'button', class: 'danger', onclick: () => close(row, load) }, 'Close…')],
    ], connections, 'The client is not connected.'));
    for (const session of sessions) {
      const subscriptions = (await get(['queues', session.vhost, session.inbox, 'bindings']).catch(() => [])).filter((row) => row.source);
      rest.append(el('h2', {}, `Session in vhost ${session.vhost}`), el('p', {}, `${number(session.queued)} messages wait, ${number(session.in_flight)} are in flight; ${session.persistent ? 'the session outlives the connection' : 'the session ends with the connection'}.`),
        table('Subscriptions', [['topic filter', (row) => row.routing_key], ['exchange', (row) => row.source]], subscriptions.slice(0, 200), session.subscriptions ? `The session has ${number(session.subscriptions)} subscriptions, which this page cannot list.` : 'The session has no subscription.'));
      rest.append(el('div', { class: 'row' }, el('button', { type: 'button', class: 'danger', onclick: () => end(session, load) }, 'Delete the session…')));
    }
  };
  await load();
}

async function close(row, load) {
  if (!await agree(`The connection of user ${row.user} from ${row.peer_host} will be closed. Its client may connect again.`, 'Close the connection', line('close', row.name))) return;
  await ask('DELETE', path('connections', row.name));
  await load();
}

async function end(session, load) {
  if (!await agree(`The session of ${session.client_id} with ${number(session.subscriptions)} subscriptions and ${number(session.queued)} messages will be deleted. This cannot be undone.`, 'Delete the session', line('sessions', 'delete', session.client_id, ...inVhost(session.vhost)))) return;
  await ask('DELETE', path('trellis', 'sessions', session.vhost, session.client_id));
  await load();
}
