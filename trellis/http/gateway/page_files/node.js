import { ask, get } from './api.js';
import { age, agree, card, commandLine, containing, el, line, number, size, table } from './dom.js';
import { latest } from './live.js';
import { repeat } from './pager.js';

export const title = 'Node';
// Milliseconds between two readings of the state in the cluster, and of the bridges.
const RENEWED = 5000, BRIDGES_SHOWN = 200;
// A text that `--filter` of `trellis list` takes for a condition on a column, not for a word.
const CONDITION = /^[a-z_]+(!=|[=<>])/;
const LOG_SHOWN = 200, LEVELS = ['debug', 'info', 'warning', 'error'];

export async function show(view) {
  const overview = await get(['overview']);
  const checks = ['alarms', 'virtual-hosts', 'ready-to-serve-clients'];
  const results = await Promise.all(checks.map((name) => get(['health', 'checks', name]).then((result) => [name, result.status ?? 'ok', ''], (error) => [name, 'failed', error.message])));
  const one = latest();
  view.append(el('h1', {}, `Node ${overview.node}`),
    el('div', { class: 'cards' }, card(overview.product_version, 'Trellis'), card(overview.erlang_full_version, 'runs on'), card(one ? age(one.uptime) : '–', 'since the start'), card(number(overview.object_totals.connections), 'connections'), card(number(overview.object_totals.queues), 'queues and inboxes of sessions'), card(number(overview.object_totals.exchanges), 'exchanges')),
    el('h2', {}, 'Health'), table('Health checks', [['check', (row) => row[0]], ['result', (row) => el('span', { class: row[1] === 'ok' ? '' : 'bad' }, row[1])], ['reason', (row) => row[2]]], results, ''), commandLine(line('health')),
    el('h2', {}, 'Listeners'), table('Ports that the broker listens on', [['protocol', (row) => row.protocol], ['address', (row) => row.ip_address], ['port', (row) => String(row.port), 'n'], ['TLS', (row) => (row.tls ? 'yes' : 'no')]], overview.listeners, 'No port is open.'));
  const part = () => { const section = el('section'); view.append(section); return section; };
  const places = [part(), part(), part(), part(), part(), part()];
  const ends = await Promise.all([cluster(places[1]), bridges(places[2]), certificates(places[0]), log(places[3]), settings(places[4]), definitions(places[5])]);
  return () => ends.forEach((end) => end?.());
}

async function rowsOf(view, heading, kind) {
  try { return await get(['trellis', kind]); } catch (error) { view.append(el('h2', {}, heading), el('p', { class: 'soft' }, error.message)); return null; }
}

async function certificates(view) {
  const rows = await rowsOf(view, 'Certificates', 'certificates');
  if (rows) view.append(el('h2', {}, 'Certificates'), table('Certificates of the listeners', [['file', (row) => row.file], ['valid until', (row) => row.not_after], ['days left', (row) => el('span', { class: row.days_left < 14 ? 'bad' : '' }, number(row.days_left)), 'n']], rows, 'No listener uses TLS.'), commandLine(line('list', 'certificates')));
}

// Shows the state of the node in its cluster, and renews it. Returns a function that ends the renewal.
async function cluster(view) {
  const rows = await rowsOf(view, 'Cluster', 'cluster');
  if (!rows?.length) return undefined;
  const cards = el('div', { class: 'cards' });
  const draw = ([row]) => cards.replaceChildren(card(row.state, 'state of this node'), card(number(row.epoch), 'epoch'), card(number(row.offset), 'last offset'), card(number(row.listed), 'nodes'), card(number(row.struck), 'nodes too far behind'), card(size(row.log_bytes), 'replicated log'), card(`${row.lease.toFixed(1)} s`, 'lease'));
  view.append(el('h2', {}, `Cluster ${rows[0].cluster}`), cards, commandLine(line('cluster', 'status')));
  draw(rows);
  // If the broker does not answer, the cards keep their figures, and the notice of the page says so.
  return repeat(() => get(['trellis', 'cluster']).then(draw, () => null), () => RENEWED, null);
}

// Lists the links to other brokers, and renews the list. Returns a function that ends the renewal.
async function bridges(view) {
  const rows = await rowsOf(view, 'Bridges', 'bridges');
  if (!rows) return undefined;
  const place = el('div');
  const draw = (links) => {
    const focused = place.contains(document.activeElement);
    const shown = [...links].sort((one, other) => (one.state === 'up') - (other.state === 'up') || one.name.localeCompare(other.name)).slice(0, BRIDGES_SHOWN);
    place.replaceChildren(table(`${number(shown.length)} of ${number(links.length)} bridges, shovels and federation links; those that are not up come first`, [['name', (row) => row.name], ['kind', (row) => row.kind], ['state', (row) => el('span', { class: { up: '', invalid: 'bad' }[row.state] ?? 'warn' }, row.state)], ['sent', (row) => number(row.sent), 'n'], ['received', (row) => number(row.received), 'n'], ['error', (row) => row.error]], shown, 'No bridge, shovel or federation link is defined.'));
    if (focused) place.querySelector('[tabindex]')?.focus({ preventScroll: true });
  };
  view.append(el('h2', {}, 'Bridges'), place, commandLine(line('list', 'bridges')));
  draw(rows);
  // If the broker does not answer, the list stays, and the notice of the page says so.
  return repeat(() => get(['trellis', 'bridges']).then(draw, () => null), () => RENEWED, null);
}

async function log(view) {
  const level = el('select', {}, LEVELS.map((name) => el('option', { value: name, selected: name === 'info' }, name))), word = el('input', { type: 'search', size: 24 });
  const place = el('div', { role: 'status' });
  let rows = await rowsOf(view, 'Log', 'log');
  if (!rows) return;
  const used = commandLine('');
  const draw = () => {
    // The list shows events of the chosen level and of higher levels, so the command excludes the lower levels.
    const lower = LEVELS.slice(0, LEVELS.indexOf(level.value)).flatMap((name) => ['--filter', `level!=${name}`]);
    used.textContent = line('list', 'log', ...lower, ...(CONDITION.test(word.value) ? containing('fields', word.value) : word.value ? ['--filter', word.value] : []), '--limit', String(LOG_SHOWN));
    const wanted = rows.filter((row) => LEVELS.indexOf(row.level) >= LEVELS.indexOf(level.value) && `${row.event} ${row.fields}`.includes(word.value));
    const shown = wanted.slice(0, LOG_SHOWN);
    place.replaceChildren(table(`${number(shown.length)} of ${number(wanted.length)} events, the newest first; the broker keeps the last ${number(rows.length)} in memory`, [['time (UTC)', (row) => row.time.slice(0, 19).replace('T', ' '), 'k'], ['level', (row) => el('span', { class: { error: 'bad', warning: 'warn' }[row.level] ?? '' }, row.level), 'k'], ['event', (row) => row.event, 'k'], ['fields', (row) => el('code', {}, row.fields)]], shown, 'No event has this level and this text.'));
  };
  view.append(el('h2', {}, 'Log'), el('form', { class: 'line', oninput: draw, onsubmit: async (event) => { event.preventDefault(); rows = await get(['trellis', 'log']); draw(); } },
    el('label', {}, 'level, and above', level), el('label', {}, 'with the text', word), el('button', {}, 'Read again')), place, used);
  draw();
}

async function settings(view) {
  const rows = await rowsOf(view, 'Settings', 'settings');
  if (!rows) return;
  const all = el('input', { type: 'checkbox' }), word = el('input', { type: 'search', size: 24 }), place = el('div', { role: 'status' }), used = commandLine('');
  const draw = () => {
    used.textContent = line('list', 'settings', ...containing('name', word.value), ...(all.checked ? [] : ['--filter', 'source!=default']));
    const chosen = rows.filter((row) => (all.checked || row.source !== 'default' || row.after_restart) && row.name.includes(word.value));
    place.replaceChildren(table(`${all.checked ? 'Settings' : 'Settings that differ from their defaults'}: ${number(chosen.length)} of ${number(rows.length)}`, [['setting', (row) => row.name, 'k'], ['value', (row) => (row.value.length > 100 ? `${row.value.slice(0, 100)}…` : row.value)], ['source', (row) => row.source], ['value after a restart', (row) => row.after_restart]], chosen, all.checked || word.value ? 'No setting has a name with this text.' : 'All settings have their defaults.'));
  };
  view.append(el('h2', {}, 'Settings'), el('form', { class: 'line', oninput: draw, onsubmit: (event) => event.preventDefault() }, el('label', {}, 'with the name', word), el('label', {}, 'also settings with their defaults', all)), place, used);
  draw();
}

async function definitions(view) {
  const file = el('input', { type: 'file', accept: '.json,application/json', required: true }), statusLine = el('div', { role: 'status' });
  const counts = (answer) => Object.entries(answer.taken).filter(([, count]) => count).map(([kind, count]) => `${kind.replaceAll('_', ' ')}: ${number(count)}`).join(', ') || 'nothing';
  const problems = (answer) => [...answer.refused.map((text) => el('li', { class: 'bad' }, text)), ...answer.notes.map((text) => el('li', {}, text))];
  const run = async () => {
    let body;
    try { body = JSON.parse(await file.files[0].text()); } catch { statusLine.replaceChildren(el('p', { class: 'bad' }, 'The file is not a JSON document. Choose a file that `trellis definitions export` or this page has written.')); return; }
    try {
      const trial = await ask('POST', '/api/definitions?dry_run=true', body);
      const shown = problems(trial).slice(0, 50), hidden = trial.refused.length + trial.notes.length - shown.length;
      statusLine.replaceChildren(el('p', {}, `The file would import: ${counts(trial)}. Refused: ${number(trial.refused.length)}.`), el('ul', { class: 'plain' }, shown), hidden > 0 ? el('p', { class: 'soft' }, `${number(hidden)} more lines are not shown.`) : '');
      if (!await agree(`The definitions of ${file.files[0].name} will be imported: ${counts(trial)}. Objects that exist already may get other arguments; nothing is deleted.`, 'Import them', line('definitions', 'import', file.files[0].name))) return;
      const done = await ask('POST', '/api/definitions', body);
      statusLine.prepend(el('p', {}, `Imported: ${counts(done)}. Refused: ${number(done.refused.length)}.`));
    } catch (error) { statusLine.replaceChildren(el('p', { class: 'bad' }, error.message)); }
  };
  view.append(el('h2', {}, 'Definitions'), el('p', {}, el('a', { href: '/api/definitions', download: 'definitions.json' }, 'Download the definitions'), ': virtual hosts, users, permissions, policies, exchanges, queues and bindings.'), commandLine(line('definitions', 'export', 'definitions.json')),
    el('form', { class: 'line', onsubmit: (event) => { event.preventDefault(); run(); } }, el('label', {}, 'definitions file', file), el('button', {}, 'Import…')), statusLine, commandLine(`${line('doctor', 'definitions.json')}; ${line('definitions', 'import', 'definitions.json')}`));
}
