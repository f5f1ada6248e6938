// Changed bindings, tried on the topics of the last hour: which queues gain messages, and which lose some.
import { ask, path } from './api.js';
import { age, commandLine, el, inVhost, line, number, table } from './dom.js';

const messages = (count) => `${number(count)} message${count === 1 ? '' : 's'}`;
const topics = (count) => `${number(count)} topic${count === 1 ? '' : 's'}`;
const named = (row) => `“${row.routing_key}” of ${row.source} to ${row.destination_type} ${row.destination}${Object.entries(row.arguments ?? {}).map(([name, value]) => ` ${name}=${value}`).join('')}`;
const json = (text) => { try { return JSON.parse(text); } catch { return text; } };
// Returns the words of the command line for arguments. A text that would be read as JSON, such as "3", gets quotes.
const words = (given) => Object.entries(given).map(([name, value]) => `${name}=${typeof value === 'string' && json(value) === value ? value : JSON.stringify(value)}`);
// Returns the arguments in a text such as "x-match=any, kind=order". As in the command line, a value that is JSON has JSON's type.
const pairs = (text) => Object.fromEntries(text.split(',').map((part) => part.trim()).filter(Boolean).map((part) => {
  const at = part.indexOf('=');
  return at < 0 ? [part, ''] : [part.slice(0, at), json(part.slice(at + 1))];
}));

// Returns the sandbox of a virtual host: an element, and a function that fills in a binding to try without.
export function sandbox(vhost) {
  let changes = [];
  const change = el('select', {}, el('option', { value: 'remove' }, 'without'), el('option', { value: 'add' }, 'with'));
  const source = el('input', { size: 18, required: true, value: 'amq.topic' }), key = el('input', { size: 24 });
  const kind = el('select', {}, el('option', { value: 'queue' }, 'queue'), el('option', { value: 'exchange' }, 'exchange')), target = el('input', { size: 18, required: true });
  const given = el('input', { size: 24, placeholder: 'x-match=any, kind=order' });
  const list = el('ul', { class: 'plain' }), answer = el('div', { role: 'status' }), trying = el('button', { type: 'button', class: 'main', onclick: () => run() }, 'Try it');
  const draw = () => {
    list.replaceChildren(...changes.map((row, at) => el('li', {}, el('b', {}, row.change === 'add' ? 'with ' : 'without '), named(row), ' ',
      el('button', { type: 'button', onclick: () => { changes.splice(at, 1); draw(); } }, 'Remove from the trial'))));
    trying.disabled = !changes.length;
    answer.replaceChildren(...(changes.length ? [commandOf(vhost(), changes)] : []));
  };
  const add = (row) => {
    if (!changes.some((one) => JSON.stringify(one) === JSON.stringify(row))) changes.push(row);
    draw();
  };
  const run = async () => {
    const used = commandOf(vhost(), changes);
    answer.replaceChildren(el('p', { class: 'soft' }, 'The broker tries the changes…'), used);
    try { answer.replaceChildren(...result(await ask('POST', path('route', 'try'), { vhost: vhost(), changes })), used); } catch (error) { answer.replaceChildren(el('p', { class: 'bad' }, error.message), used); }
  };
  draw();
  const view = el('section', { id: 'try' }, el('h2', {}, 'Try it: what would another binding change?'),
    el('p', { class: 'soft' }, 'Nothing changes in the broker. The bindings are tried on the topics that were published in the last hour. Choose a binding of the graph, or enter its fields.'),
    el('form', { class: 'line', onsubmit: (event) => { event.preventDefault(); add({ change: change.value, source: source.value, routing_key: key.value, destination_type: kind.value, destination: target.value, arguments: pairs(given.value) }); } },
      el('label', {}, 'try', change), el('label', {}, 'exchange', source), el('label', {}, 'binding key', key), el('label', {}, 'to a', kind), el('label', {}, 'name', target), el('label', {}, 'arguments (headers exchange)', given), el('button', {}, 'Add to the trial')),
    list, el('div', { class: 'row' }, trying), answer);
  return [view, (row) => {
    add({ change: 'remove', source: row.source, routing_key: row.routing_key, destination_type: row.destination_type, destination: row.destination, arguments: row.arguments });
    view.scrollIntoView({ block: 'nearest' });
    trying.focus();
  }, () => { changes = []; draw(); }];
}

// Returns the command line that tries these changes.
function commandOf(vhost, changes) {
  const flags = changes.flatMap((row) => [row.change === 'add' ? '--add' : '--remove', row.source, row.routing_key, row.destination_type === 'exchange' ? `exchange:${row.destination}` : row.destination, ...words(row.arguments)]);
  return commandLine(line('route', ...flags, ...inVhost(vhost)));
}

function result(trial) {
  const since = Math.max(0, Date.now() / 1000 - trial.since);
  const parts = [el('p', {}, `The changes were tried on ${topics(trial.topics)} with ${messages(trial.messages)} of the last ${age(since)}.`)];
  const say = (truth, text, kind = 'soft') => { if (truth) parts.push(el('p', { class: kind }, text)); };
  say(!trial.complete, `The broker knows ${topics(trial.topics_known)}, but the trial ended before it had tried all of them, because it had to follow too many bindings.`, 'warn');
  say(trial.unremembered, `Not tried: ${messages(trial.unremembered)} with topics that the broker does not remember.`, 'warn');
  say(trial.by_headers, `${topics(trial.by_headers)} pass an exchange that routes by headers: the result for these topics holds for messages without headers.`, 'warn');
  say(trial.estimated, `${topics(trial.estimated)} pass an exchange that routes by headers: the numbers for these topics are estimates from samples of the messages.`);
  say(trial.newly_unroutable, `${messages(trial.newly_unroutable)} would reach no queue and no session any more.`, 'bad');
  say(trial.newly_routed, `Messages that reach no queue and no session now, but would reach one: ${number(trial.newly_routed)}.`);
  parts.push(table('The changed bindings', [['change', (row) => (row.change === 'add' ? 'with' : 'without')], ['binding', named], ['topics that match', (row) => number(row.topics), 'n'], ['messages', (row) => number(row.messages), 'n']], trial.changes, ''),
    table('Queues and sessions that gain or lose messages', [['name', (row) => `${row.type} ${row.name}`], ['effect', (row) => el('b', { class: row.effect === 'loses' ? 'bad' : '' }, row.effect)], ['messages', (row) => number(row.messages), 'n'], ['topics', (row) => number(row.topics), 'n']], trial.queues, 'No queue and no session gains or loses a message.'));
  say(trial.left_out, `${number(trial.left_out)} gains and losses of further queues are not shown.`, 'warn');
  const all = trial.queues.reduce((sum, row) => sum + row.topics, 0);
  if (trial.topics_changed.length) parts.push(table(`Topics with the most messages, by queue: ${number(trial.topics_changed.length)} of ${number(all)} are shown`, [['topic', (row) => row.topic || row.routing_key], ['exchange', (row) => row.exchange], ['queue or session', (row) => row.name], ['effect', (row) => el('span', { class: row.effect === 'loses' ? 'bad' : '' }, row.effect)], ['messages', (row) => number(row.messages), 'n']], trial.topics_changed, ''));
  return parts;
}
