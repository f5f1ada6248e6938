import { get } from './api.js';
import { commandLine, el, inVhost, line, number, svg, table } from './dom.js';
import { sandbox } from './sandbox.js';

export const title = 'Routing';
const SHOWN = 60;
// Largest number of bindings of each exchange, and of queues with each verdict, in an explanation.
const LIMIT = 500;

export async function show(view) {
  view.append(el('h1', {}, 'Routing'), el('h2', {}, 'Where would a message go, and why?'));
  const vhosts = await get(['vhosts'], { columns: 'name' });
  const field = (text, attributes) => { const input = el('input', attributes); return [input, el('label', {}, text, input)]; };
  const [exchange, exchangeLabel] = field('exchange', { value: 'amq.topic', size: 18 }), [key, keyLabel] = field('routing key', { size: 28 });
  const [topic, topicLabel] = field('or MQTT topic', { size: 28, placeholder: 'plant/7/temperature' }), [user, userLabel] = field('as user (optional)', { size: 14 });
  const vhost = el('select', {}, vhosts.map((row) => el('option', { value: row.name }, row.name)));
  const answer = el('div', { role: 'status' });
  view.append(el('form', { class: 'line', onsubmit: async (event) => {
    event.preventDefault();
    const query = { vhost: vhost.value, limit: LIMIT, ...(topic.value ? { mqtt: topic.value } : { exchange: exchange.value, key: key.value }), ...(user.value ? { user: user.value } : {}) };
    const words = topic.value ? ['--mqtt', topic.value] : [exchange.value || 'amq.default', key.value];
    const used = commandLine(line('route', ...words, ...(user.value ? ['--publisher', user.value] : []), ...inVhost(vhost.value)));
    try { answer.replaceChildren(...explained(await get(['route'], query)), used); } catch (error) { answer.replaceChildren(el('p', { class: 'bad' }, error.message), used); }
  } }, exchangeLabel, keyLabel, topicLabel, userLabel, el('label', {}, 'vhost', vhost), el('button', { class: 'main' }, 'Explain')), answer, el('h2', {}, 'Exchanges and bindings'));
  const graph = el('div');
  const [trial, without, forget] = sandbox(() => vhost.value);
  view.append(graph, trial);
  const draw = async () => {
    const page = await get(['bindings', vhost.value], { default: false, page: 1, page_size: SHOWN });
    graph.replaceChildren(...map(page.items, page.total_count, without), commandLine(line('list', 'bindings', '--filter', 'source!=', '--limit', String(SHOWN), ...inVhost(vhost.value))));
  };
  vhost.addEventListener('change', () => { forget(); draw(); });
  await draw();
}

function rest(count, noun, tag) {
  return count > 0 ? [el(tag, { class: 'soft' }, `… and ${number(count)} more ${noun}`)] : [];
}

function explained(explanation) {
  const parts = [];
  if (explanation.refusal) parts.push(el('p', { class: 'bad' }, `Refused: ${explanation.refusal}`));
  if (explanation.publishers_blocked) parts.push(el('p', { class: 'warn' }, 'Publishers are blocked now, because an alarm is on.'));
  if (explanation.rights.length) parts.push(el('ul', { class: 'plain' }, explanation.rights.map((row) => el('li', {}, `${row.right} ${row.rule ? `“${row.rule}”` : '(no rule)'} ${row.allows ? 'allows' : 'does not allow'} ${row.on}`))));
  const branch = (name, seen) => el('li', {}, el('b', {}, `exchange ${name || 'amq.default'}`), ` ${explanation.exchanges.find((row) => row.name === name)?.type ?? '(does not exist)'}`,
    seen.has(name) ? ' (shown above)' : el('ul', {}, explanation.bindings.filter((row) => row.exchange === name).map((row) => row.destination_type === 'exchange'
      ? [el('li', {}, `“${row.binding_key}” matches: ${row.reason}`), branch(row.destination, new Set([...seen, name]))]
      : el('li', {}, `“${row.binding_key}” → ${row.destination_type} ${row.destination}: ${row.reason}`)), rest((explanation.exchanges.find((row) => row.name === name)?.matched ?? 0) - explanation.bindings.filter((row) => row.exchange === name).length, 'bindings', 'li')));
  parts.push(el('ul', { class: 'tree' }, branch(explanation.exchange, new Set())));
  parts.push(table('What each queue does with the message', [['queue', (row) => `${row.type} ${row.name}`], ['verdict', (row) => row.verdict.replaceAll('_', ' ')], ['why', (row) => row.text]], explanation.queues, 'The message reaches no queue and no session.'));
  for (const [verdict, count] of Object.entries(explanation.verdicts)) parts.push(...rest(count - explanation.queues.filter((row) => row.verdict === verdict).length, `queues with the verdict “${verdict.replaceAll('_', ' ')}”`, 'p'));
  if (explanation.near_misses.length) parts.push(el('h2', {}, 'Near misses'), el('ul', { class: 'plain' }, explanation.near_misses.map((row) => el('li', {}, el('b', {}, row.binding_key), ` → ${row.destination_type} ${row.destination}: ${row.text}`))));
  return parts;
}

// `without` is called with the binding that the user chooses.
function map(shown, total, without) {
  if (!shown.length) return [el('p', { class: 'soft' }, 'Only the default exchange has bindings.')];
  const from = [...new Set(shown.map((row) => row.source))];
  const step = 30, height = shown.length * step + 10, width = 900;
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const parts = [], lines = [];
  const box = (x, at, wide, text, choose) => {
    const label = svg('text', { x: x + 8, y: at + 4 }), whole = svg('title'), drawn = [svg('rect', { x, y: at - 12, width: wide, height: 24, rx: 5 }, whole), label];
    label.textContent = cut(text, Math.floor(wide / 7));
    whole.textContent = text;
    if (!choose) { parts.push(...drawn); return; }
    const chosen = svg('a', { href: '#/routing', 'aria-label': `Try without the binding ${text}` }, ...drawn);
    chosen.addEventListener('click', (event) => { event.preventDefault(); choose(); });
    parts.push(chosen);
  };
  shown.sort((one, other) => from.indexOf(one.source) - from.indexOf(other.source));
  const middle = (name) => { const places = shown.map((row, index) => (row.source === name ? index : -1)).filter((index) => index >= 0); return 20 + step * (places[0] + places.at(-1)) / 2; };
  shown.forEach((row, index) => {
    const a = middle(row.source), b = 20 + index * step, key = row.routing_key || (JSON.stringify(row.arguments) === '{}' ? '(empty key)' : JSON.stringify(row.arguments));
    lines.push(svg('path', { d: `M250,${a}C320,${a} 330,${b} 400,${b}` }));
    box(400, b, 490, `${key} → ${row.destination_type} ${row.destination}`, () => without(row));
  });
  from.forEach((name) => box(0, middle(name), 250, name));
  parts.unshift(...lines);
  return [el('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Graph of bindings' }, svg('svg', { class: 'graph', viewBox: `0 0 ${width} ${height}`, width, height, role: 'group', 'aria-label': `${shown.length} bindings of ${from.length} exchanges` }, ...parts)),
    el('p', { class: 'soft' }, `${number(shown.length)} of ${number(total)} bindings are shown. Choose a binding to try what would change without it.`)];
}
