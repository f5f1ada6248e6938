import { ask, get, path } from './api.js';
import { age, agree, commandLine, el, inVhost, line, number, rate, size } from './dom.js';
import { watch } from './livetopics.js';

export const title = 'Topics';
const SHOWN = 1000;

// The topics that have a retained message, and those that are published now, as a tree with their last values.
export async function show(view) {
  const vhosts = await get(['vhosts'], { columns: 'name' });
  const vhost = el('select', {}, vhosts.map((row) => el('option', { value: row.name }, row.name)));
  const filter = el('input', { size: 28, value: '#' }), tree = el('div'), where = el('p', { class: 'soft', role: 'status' }), used = commandLine('');
  let kept = [], live = [];
  const plant = () => {
    const rows = new Map(kept.map((row) => [row.topic, { retained: row }]));
    for (const row of live) rows.set(row.topic, { ...rows.get(row.topic), live: row });
    tree.replaceChildren(rows.size ? el('ul', { class: 'tree' }, branches(rows)) : '');
  };
  const draw = async () => {
    used.textContent = line('retained', 'list', filter.value || '#', ...inVhost(vhost.value));
    try { kept = await get(['retained', vhost.value], { filter: filter.value || '#', count: SHOWN, truncate: 200 }); } catch (error) { kept = []; where.textContent = error.message; plant(); return; }
    where.textContent = `${number(kept.length)} topics have a retained message.`;
    plant();
    if (kept.length < SHOWN) return;
    const mine = kept;
    const all = await get(['retained', vhost.value, 'count'], { filter: filter.value || '#' }).catch(() => null);
    if (all && kept === mine && all.topics > kept.length) where.textContent = `The first ${number(kept.length)} of ${all.more ? 'more than ' : ''}${number(all.topics)} topics with a retained message are shown: give a narrower filter.`;
  };
  const clear = async () => {
    used.textContent = line('retained', 'clear', filter.value || '#', ...inVhost(vhost.value));
    const trial = await ask('DELETE', `${path('retained', vhost.value)}?${new URLSearchParams({ filter: filter.value || '#', dry_run: true })}`);
    if (!trial.removed) { where.textContent = 'No retained message matches the filter.'; return; }
    if (!await agree(`${number(trial.removed)} retained messages of topics that match ${filter.value || '#'} will be removed. This cannot be undone.`, 'Remove them', line('retained', 'clear', filter.value || '#', ...inVhost(vhost.value)))) return;
    await ask('DELETE', `${path('retained', vhost.value)}?${new URLSearchParams({ filter: filter.value || '#' })}`);
    await draw();
  };
  const lively = el('div');
  let stop = null;
  const end = () => { stop?.(); stop = null; watching.textContent = 'Watch live'; };
  const toggle = async () => {
    if (stop) { end(); return; }
    used.textContent = line('tail', '--mqtt', filter.value || '#', ...inVhost(vhost.value));
    try { stop = await watch(lively, vhost.value, filter.value || '#', (rows) => { live = rows; plant(); }); watching.textContent = 'Stop'; } catch (error) { lively.textContent = error.message; }
  };
  const again = async (event) => {
    event.preventDefault();
    const watched = stop !== null;
    end();
    live = [];
    await draw();
    if (watched) await toggle();
  };
  const watching = el('button', { type: 'button', onclick: toggle }, 'Watch live');
  view.append(el('h1', {}, 'Topics'), el('form', { class: 'line', onsubmit: again },
    el('label', {}, 'topic filter', filter), el('label', {}, 'vhost', vhost), el('button', { class: 'main' }, 'Show'), watching, el('button', { type: 'button', class: 'danger', onclick: clear }, 'Remove retained messages…')), lively, where, tree, used);
  const topic = el('input', { size: 28, required: true, placeholder: 'plant/7/set' }), payload = el('input', { size: 28 }), retain = el('input', { type: 'checkbox' }), statusLine = el('p', { role: 'status' }), command = commandLine('');
  view.append(el('h2', {}, 'Publish'), el('form', { class: 'line', onsubmit: async (event) => {
    event.preventDefault();
    const properties = { headers: retain.checked ? { 'x-mqtt-retain': true } : {} };
    const key = [...topic.value].map((one) => ({ '/': '.', '.': '/' })[one] ?? one).join('');
    command.textContent = line('publish', '--mqtt', topic.value, '--body', payload.value, ...(retain.checked ? ['--retain'] : []), ...inVhost(vhost.value));
    try {
      const answer = await ask('POST', `${path('exchanges', vhost.value, 'amq.topic')}/publish`, { routing_key: key, payload: payload.value, payload_encoding: 'string', properties });
      statusLine.textContent = answer.routed ? 'The message reached its subscribers.' : 'The message matches no subscription and no binding.';
      if (retain.checked) await draw();
    } catch (error) { statusLine.textContent = error.message; }
  } }, el('label', {}, 'topic', topic), el('label', {}, 'payload', payload), el('label', {}, 'retain', retain), el('button', { class: 'main' }, 'Publish')), statusLine, command);
  await draw();
  return end;
}

function branches(rows) {
  const root = new Map();
  for (const topic of rows.keys()) {
    let level = root;
    for (const name of topic.split('/')) {
      if (!level.has(name)) level.set(name, new Map());
      level = level.get(name);
    }
  }
  return items(rows, root, '');
}

function items(values, level, before) {
  return [...level.entries()].sort(([one], [other]) => one.localeCompare(other)).map(([name, below]) => {
    // Levels without a value and with one level below them are shown in one line.
    let topic = before + name, shown = name || '(empty)';
    while (below.size === 1 && !values.has(topic)) {
      const [[next, deeper]] = below;
      topic += `/${next}`;
      shown += `/${next}`;
      below = deeper;
    }
    const row = values.get(topic);
    return el('li', {}, el('b', {}, shown), row ? [' ', value(row)] : '', below.size ? el('ul', {}, items(values, below, `${topic}/`)) : '');
  });
}

function value({ retained, live }) {
  const text = live ? live.value : retained.payload_encoding === 'base64' ? size(retained.payload_bytes) : retained.payload.slice(0, 200);
  const kept = retained ? ` retained, QoS ${retained.qos}${retained.expires_in_ms === null ? '' : `, expires in ${age(retained.expires_in_ms / 1000)}`}` : '';
  return el('span', {}, el('code', {}, text), el('span', { class: 'soft' }, live ? ` ${rate(live.speed)} messages/s, ${number(live.total)} message${live.total === 1 ? '' : 's'}` : '', kept));
}
