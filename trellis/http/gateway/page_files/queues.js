import { ask, get, path } from './api.js';
import { age, agree, card, commandLine, el, inVhost, line, link, number, rate, table, text } from './dom.js';
import { findings } from './findings.js';
import { pager } from './pager.js';

const waits = (row) => (row.head_age_ms === undefined ? '' : age(row.head_age_ms / 1000));

export const title = 'Queues';
export async function show(view) {
  view.append(el('h1', {}, 'Queues'));
  const list = pager(view, 'queue', 'messages_ready', (query) => get(['queues'], { ...query, sessions: false }), (order) => [
    ['name', (row) => link(['queue', row.vhost, row.name], row.name), '', 'name'], ['ready', (row) => number(row.messages_ready), 'n', 'messages_ready'], ['unacknowledged', (row) => number(row.messages_unacknowledged), 'n', 'messages_unacknowledged'],
    ['first message waits', (row) => waits(row), 'n', 'head_age_ms'], ['in/s', (row) => rate(row.message_stats?.publish_details?.rate), 'n'], ['out/s', (row) => rate(row.message_stats?.deliver_get_details?.rate), 'n'],
    // A narrow screen shows the first columns only; the others come with scrolling.
    ['consumers', (row) => number(row.consumers), 'n', 'consumers'], ['vhost', (row) => row.vhost, '', 'vhost'], ['type', (row) => row.type, '', 'type'], ['policy', (row) => row.policy ?? ''],
  ], 'There is no queue yet. Declare one with a client, or import definitions with `trellis definitions import`.', 'queues', { type: 'kind' });
  return list;
}

export async function one(view, vhost, name) {
  const at = ['queues', vhost, name];
  view.append(el('h1', {}, `Queue ${name}`));
  const cards = el('div', { class: 'cards' }), about = el('div'), rest = el('div'), messages = el('div');
  view.append(cards, el('h2', {}, 'What is wrong?'), about, rest, el('h2', {}, 'Messages'), messages);
  const as = el('select', { id: 'as' }, [['auto', 'automatic form'], ['text', 'text'], ['json', 'JSON'], ['hex', 'hex']].map(([value, name]) => el('option', { value }, name)));
  const used = commandLine(''), say = (action, ...words) => { used.textContent = line(action, name, ...words, ...inVhost(vhost)); };
  const pausing = el('button', { type: 'button', onclick: () => pause(at, pausing.textContent === 'Resume', load, say) }, 'Pause');
  const load = async () => {
    const queue = await get(at);
    pausing.textContent = queue.paused ? 'Resume' : 'Pause';
    cards.replaceChildren(card(number(queue.messages_ready), 'ready'), card(number(queue.messages_unacknowledged), 'unacknowledged'), card(number(queue.consumers), 'consumers'), card(waits(queue) || '–', 'first message waits'),
      card(rate(queue.message_stats?.publish_details?.rate), 'messages/s in'), card(rate(queue.message_stats?.deliver_get_details?.rate), 'messages/s out'));
    const bindings = await get([...at, 'bindings']);
    const consumers = (await get(['consumers', vhost], { queue: name, page: 1, page_size: 100 })).items;
    rest.replaceChildren(el('div', { class: 'columns' },
      el('section', {}, el('h2', {}, 'Bindings'), table('Bindings of the queue', [['exchange', (row) => row.source || '(default)'], ['routing key', (row) => row.routing_key], ['arguments', (row) => JSON.stringify(row.arguments) === '{}' ? '' : JSON.stringify(row.arguments)]], bindings.slice(0, 200), 'No binding leads to the queue.')),
      el('section', {}, el('h2', {}, 'Consumers'), table('Consumers of the queue', [['tag', (row) => row.consumer_tag], ['connection', (row) => link(['client', row.channel_details.connection_name], row.channel_details.connection_name)], ['holds', (row) => number(row.messages_unacknowledged), 'n'], ['prefetch', (row) => number(row.prefetch_count), 'n'], ['state', (row) => row.activity_status]], consumers, 'The queue has no consumer.'))),
      el('h2', {}, 'Definition'), el('pre', {}, JSON.stringify({ type: queue.type, durable: queue.durable, auto_delete: queue.auto_delete, exclusive: queue.exclusive, policy: queue.policy ?? '', arguments: queue.arguments }, null, 1)));
  };
  await load();
  findings(about, get(['why', ...at], { seconds: 1 }));
  messages.append(el('div', { class: 'row' },
    el('label', { class: 'hidden', for: 'as' }, 'Show messages as'), as, el('button', { type: 'button', onclick: () => peek(shown, at, as, say) }, 'Look at the first messages'),
    el('button', { type: 'button', onclick: () => redrive(at, shown, load, say) }, 'Redrive dead letters…'),
    el('label', { class: 'hidden', for: 'to' }, 'Queue to which the messages are moved'), el('input', { id: 'to', placeholder: 'queue', size: 14 }),
    el('button', { type: 'button', onclick: () => move(at, document.getElementById('to').value, shown, load, say) }, 'Move…'),
    pausing,
    el('button', { type: 'button', class: 'danger', onclick: () => purge(at, load, say) }, 'Purge…')),
    used);
  say('peek');
  const shown = el('div', { role: 'status' });
  messages.append(shown);
  view.append(commandLine(line('why', 'queue', name, ...inVhost(vhost))));
}

// Shows the first messages, ten at a time, in the form that the select `as` names. `say` shows the command line of each action.
async function peek(shown, at, as, say) {
  const peeked = [], list = el('ul', { class: 'plain' }), more = el('button', { type: 'button' }, 'Ten more');
  const item = (row) => el('li', {}, el('b', {}, `${row.exchange || '(default)'} → ${row.routing_key}`), ` ${row.redelivered ? `returned ${number(row.returns)} times ` : ''}`, el('pre', {}, text(row, as.value)));
  const tell = (after) => say('peek', '--count', '10', ...(after === undefined ? [] : ['--after', String(after)]), ...(as.value === 'hex' ? ['--hex'] : as.value === 'json' ? ['--json'] : []));
  const load = async () => {
    const after = peeked.at(-1)?.sequence;
    tell(after);
    const rows = await get([...at, 'messages'], { count: 10, ...(peeked.length ? { after } : {}) });
    peeked.push(...rows);
    list.append(...rows.map(item));
    more.hidden = rows.length < 10;
  };
  as.onchange = () => { list.replaceChildren(...peeked.map(item)); tell(); };
  more.addEventListener('click', load);
  await load();
  shown.replaceChildren(...(peeked.length ? [list, more] : [el('p', { class: 'soft' }, 'No message waits.')]));
}

async function pause(at, paused, load, say) {
  say(paused ? 'resume' : 'pause');
  await ask(paused ? 'DELETE' : 'PUT', `${path(...at)}/pause`);
  await load();
}

// Asks the broker what a move would do, and then the user; shows the progress of the move.
async function begin(at, action, body, words, shown, load) {
  const trial = await ask('POST', `${path(...at)}/${action}`, { ...body, dry_run: true });
  const parts = trial.queues.map((row) => `${number(row.messages)} to queue ${row.name}`);
  const stay = Object.entries(trial.refused ?? {}).map(([reason, count]) => `${number(count)} stay in the queue: ${reason}`);
  if (!parts.length) { shown.replaceChildren(el('p', { class: 'soft' }, `No message would be moved. ${stay.join('; ')}`)); return; }
  if (!await agree(`Messages that would be moved: ${[...parts, ...stay].join('; ')}.`, 'Move them', line(...words))) return;
  const { id } = await ask('POST', `${path(...at)}/${action}`, body);
  for (;;) {
    const state = await get(['moves', String(id)]);
    shown.replaceChildren(el('p', {}, `${number(state.moved)} of ${number(state.messages)} messages are moved${state.state === 'running' || state.state === 'ending' ? '…' : `: ${state.state}. ${state.reason}`}`));
    if (state.state !== 'running' && state.state !== 'ending') break;
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
  await load();
}

function redrive(at, shown, load, say) {
  say('redrive');
  return begin(at, 'redrive', {}, ['redrive', at[2], ...inVhost(at[1])], shown, load);
}

function move(at, to, shown, load, say) {
  say('move', '--to', to || 'QUEUE');
  if (to) return begin(at, 'move', { queue: to }, ['move', at[2], '--to', to, ...inVhost(at[1])], shown, load);
  shown.replaceChildren(el('p', { class: 'bad' }, 'Name the queue to which the messages are moved.'));
  return undefined;
}

async function purge(at, load, say) {
  say('purge');
  const [, vhost, name] = at, queue = await get(at);
  if (!await agree(`${number(queue.messages_ready)} messages of queue ${name} will be discarded. This cannot be undone.`, 'Purge the queue', line('purge', name, ...inVhost(vhost)))) return;
  await ask('DELETE', `${path(...at)}/contents`);
  await load();
}
