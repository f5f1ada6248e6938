import { get } from './api.js';
import { age, card, commandLine, el, line, number, table } from './dom.js';
import { latest } from './live.js';

export const title = 'Node';
export async function show(view) {
  const overview = await get(['overview']);
  const checks = ['alarms', 'virtual-hosts', 'ready-to-serve-clients'];
  const results = await Promise.all(checks.map((name) => get(['health', 'checks', name]).then((found) => [name, found.status ?? 'ok', ''], (error) => [name, 'failed', error.message])));
  const one = latest();
  const settings = el('div', { role: 'status' });
  const rows = await get(['trellis', 'settings']).catch((error) => settings.append(el('h2', {}, 'Settings'), el('p', {}, error.message)) ?? null);
  if (rows) {
    const chosen = rows.filter((row) => row.source !== 'default' || row.after_restart);
    settings.append(el('h2', {}, 'Settings'), table(`Settings that differ from their defaults (${chosen.length} of ${rows.length})`, [['setting', (row) => row.name, 'k'], ['value', (row) => (row.value.length > 100 ? `${row.value.slice(0, 100)}…` : row.value)], ['source', (row) => row.source], ['value after a restart', (row) => row.after_restart]], chosen, 'All settings have their defaults.'), commandLine(line('list', 'settings')));
  }
  view.append(el('h1', {}, `Node ${overview.node}`),
    el('div', { class: 'cards' }, card(overview.product_version, 'Trellis'), card(overview.erlang_full_version, 'runs on'), card(one ? age(one.uptime) : '–', 'since the start'), card(number(overview.object_totals.connections), 'connections'), card(number(overview.object_totals.queues), 'queues'), card(number(overview.object_totals.exchanges), 'exchanges')),
    el('h2', {}, 'Health'), table('Health checks', [['check', (row) => row[0]], ['result', (row) => el('span', { class: row[1] === 'ok' ? '' : 'bad' }, row[1])], ['reason', (row) => row[2]]], results, ''),
    el('h2', {}, 'Listeners'), table('Ports that the broker listens on', [['protocol', (row) => row.protocol], ['address', (row) => row.ip_address], ['port', (row) => String(row.port), 'n'], ['TLS', (row) => (row.tls || row.ssl ? 'yes' : 'no')]], overview.listeners, 'No port is open.'),
    settings,
    el('h2', {}, 'Definitions'), el('p', {}, el('a', { href: '/api/definitions', download: 'definitions.json' }, 'Download the definitions'), ': virtual hosts, users, permissions, policies, exchanges, queues and bindings.'),
    commandLine(`${line('health')}; ${line('doctor')}; ${line('config', '--effective')}; ${line('definitions', 'export')}`));
}
