import { age, card, clientOf, commandLine, el, line, link, number, rate, svg, table, time } from './dom.js';
import { latest, listen, samples } from './live.js';

// TOP and BOTTOM are the y coordinates of the highest value and of 0.
const WIDTH = 600, HEIGHT = 150, TOP = 8, BOTTOM = 146;

function chart(title, keys) {
  const paths = keys.map(([, kind]) => svg('path', { class: kind }));
  const top = el('span');
  const drawing = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': title }, svg('path', { class: 'grid', d: `M0,${BOTTOM}H${WIDTH}M0,${TOP}H${WIDTH}` }), ...paths);
  const figure = el('figure', {}, drawing, el('figcaption', {}, el('b', {}, title), keys.map(([, kind, text]) => el('span', { class: `key ${kind}` }, text)), top));
  return [figure, () => {
    const highest = Math.max(0, ...samples.flatMap((one) => keys.map(([pick]) => pick(one)))), most = Math.max(1, highest);
    keys.forEach(([pick], at) => {
      const points = samples.map((one, index) => {
        const x = WIDTH - (samples.length - 1 - index) * (WIDTH / (Math.max(samples.length, 60) - 1));
        return `${x.toFixed(1)},${(BOTTOM - (pick(one) / most) * (BOTTOM - TOP)).toFixed(1)}`;
      });
      paths[at].setAttribute('d', points.length > 1 ? `M${points.join('L')}` : '');
    });
    top.textContent = `last ${age(Math.max(samples.length, 60))}, highest ${rate(highest)}`;
  }];
}

function sentence(one) {
  const { rates } = one, part = (value) => el('b', {}, rate(value));
  const lost = rates.dropped > 0
    ? ['; ', el('b', { class: 'bad' }, rate(rates.dropped)), ` are dropped (${rate(rates.unroutable)} match no binding)`]
    : ['; none is dropped'];
  return [part(rates.in), ' messages/s come in, ', part(rates.routed), ' of them are routed (', part(rates.copies), ' copies to queues and sessions), ', part(rates.out), ' are delivered', ...lost, '.'];
}

function changes(one) {
  const then = samples.at(-61) ?? samples[0];
  const clients = (sample) => Object.values(sample.connections).reduce((sum, count) => sum + count, 0);
  const grown = [['connections', clients], ['sessions', (s) => s.sessions], ['queues', (s) => s.queues], ['consumers', (s) => s.consumers], ['waiting messages', (s) => s.messages_ready]]
    .map(([text, pick]) => [text, pick(one) - pick(then)]).filter(([, change]) => change);
  return grown.length ? grown.map(([text, change]) => `${change > 0 ? '+' : '−'}${number(Math.abs(change))} ${text}`).join(', ') : 'nothing';
}

export const title = 'Now';
export function show(view) {
  const summary = el('p', { class: 'sentence' }), alarms = el('div', { role: 'alert' }), cards = el('div', { class: 'cards' });
  const changed = el('p', { class: 'soft' }), deepest = el('div'), slowest = el('div'), unroutable = el('div'), refused = el('div');
  const [flow, drawFlow] = chart('Messages per second', [[(s) => s.rates.in, 'in', 'in'], [(s) => s.rates.out, 'out', 'delivered'], [(s) => s.rates.dropped, 'drop', 'dropped']]);
  const [depth, drawDepth] = chart('Waiting messages', [[(s) => s.messages_ready, 'in', 'ready'], [(s) => s.messages_unacknowledged, 'out', 'unacknowledged']]);
  view.append(el('h1', {}, 'Now'), alarms, summary, cards, changed, el('div', { class: 'columns' }, flow, depth),
    el('div', { class: 'columns' }, el('section', {}, el('h2', {}, 'Deepest queues'), deepest), el('section', {}, el('h2', {}, 'Slowest queues'), slowest), el('section', {}, el('h2', {}, 'Unroutable topics'), unroutable), el('section', {}, el('h2', {}, 'Last refusals'), refused)),
    commandLine(`${line('health')}; ${line('list', 'queues', '--sort', 'messages_ready', '--reverse')}; ${line('list', 'queues', '--sort', 'head_age_ms', '--reverse')}; ${line('list', 'topics', '--sort', 'unroutable', '--reverse')}`));
  const draw = (one) => {
    if (!one) { summary.textContent = 'Waiting for the first sample…'; return; }
    summary.replaceChildren(...sentence(one));
    alarms.replaceChildren(...(one.alarms.length ? [el('p', { class: 'bad' }, `Alarm: ${one.alarms.join(', ')}. ${number(one.blocked)} publishers wait until the alarm ends.`)] : []));
    cards.replaceChildren(card(number(one.messages_ready), 'messages ready'), card(number(one.messages_unacknowledged), 'unacknowledged'),
      card(number(one.connections.amqp), 'AMQP connections'), card(number(one.connections.mqtt), 'MQTT connections'), card(number(one.sessions), 'MQTT sessions'),
      card(number(one.queues), 'queues'), card(number(one.consumers), 'consumers'), card(age(one.uptime), 'since the start'));
    changed.textContent = `Changed in the last minute: ${changes(one)}.`;
    const name = (row) => (row.session ? link(['client', clientOf(row.name)], `session ${clientOf(row.name)}`) : link(['queue', row.vhost, row.name], row.name));
    slowest.replaceChildren(table('Queues and sessions whose first message waits longest', [['name', name], ['first message waits', (row) => age(row.head_age_ms / 1000), 'n'], ['messages', (row) => number(row.messages), 'n'], ['consumers', (row) => number(row.consumers), 'n']], one.slowest, 'No message waits.'));
    unroutable.replaceChildren(table('Topics of the last hour with the most messages that reached no queue and no session', [['routing key', (row) => row.routing_key], ['exchange', (row) => row.exchange || '(default)'], ['messages', (row) => number(row.messages), 'n']], one.unroutable_topics, 'Each message of the last hour reached a queue or a session.'));
    deepest.replaceChildren(table('Queues and sessions with the most messages', [
      ['name', name],
      ['messages', (row) => number(row.messages), 'n'], ['consumers', (row) => number(row.consumers), 'n'],
    ], one.deepest, 'No message waits.'));
    refused.replaceChildren(one.refusals.length ? el('ul', { class: 'plain' }, one.refusals.map((row) => el('li', {}, el('b', {}, `${time(row.at)} ${row.event}`),
      `${row.repetitions ? ` ×${number(row.repetitions + 1)}` : ''} ${row.user ? `user ${row.user}, ` : ''}${row.address}: ${row.note}`))) : el('p', { class: 'soft' }, 'No client was refused.'));
    drawFlow(); drawDepth();
  };
  draw(latest());
  return listen(draw);
}
