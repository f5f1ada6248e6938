import { ask, get, path } from './api.js';
import { age, agree, card, commandLine, el, inVhost, line, link, number, size, table, text, when } from './dom.js';

export const title = 'Streams';
const TAIL_SECONDS = 1, SHOWN = 200, READ = 50;

export async function show(view) {
  view.append(el('h1', {}, 'Streams'));
  const rows = await get(['streams']);
  view.append(table('Streams and journals', [
    ['name', (row) => link(['stream', row.vhost, row.name], row.name)], ['vhost', (row) => row.vhost], ['kind', (row) => (row.journal ? 'journal' : 'stream')],
    ['first offset', (row) => number(row.first), 'n'], ['next offset', (row) => number(row.durable), 'n'], ['rows', (row) => number(row.messages), 'n'], ['size', (row) => size(row.bytes), 'n'], ['segments', (row) => number(row.segments), 'n'], ['readers', (row) => number(row.readers), 'n'], ['rows sent', (row) => number(row.served), 'n'],
  ], rows, 'There is no stream: declare a queue with x-queue-type=stream, or name a journal in stream.journals.'), commandLine(line('stream', 'list')));
}

// One stream: its segments, some of its rows, its tail, and a replay.
export async function one(view, vhost, name) {
  const cards = el('div', { class: 'cards' }), segments = el('div'), statusLine = el('p', { class: 'soft', role: 'status' }), rows = el('div'), used = commandLine('');
  const about = { vhost, queue: name };
  const load = async () => {
    const current = (await get(['streams'])).find((row) => row.vhost === vhost && row.name === name);
    if (!current) throw new Error(`There is no stream ${name} in vhost ${vhost} that this user may read.`);
    cards.replaceChildren(card(number(current.messages), 'rows'), card(size(current.bytes), 'size'), card(number(current.first), 'first offset'), card(number(current.durable), 'next offset'), card(number(current.readers), 'readers'));
    return current;
  };
  const stream = await load();
  const from = el('input', { size: 16, value: String(Math.max(stream.first, stream.durable - READ)), required: true }), moment = el('input', { type: 'datetime-local', step: 1 });
  let timer = 0, next = null, shown = [];
  const stop = () => { clearTimeout(timer); timer = 0; tailing.textContent = 'Tail'; };
  const draw = () => rows.replaceChildren(table('Rows of the stream', [['offset', (row) => number(row.offset), 'n'], ['time (UTC)', (row) => when(row.published_at), 'k'], ['exchange', (row) => row.exchange || '(default)'], ['routing key', (row) => row.routing_key], ['publisher', (row) => row.publisher ?? ''], ['size', (row) => size(row.payload_bytes), 'n'],
    ['message', (row) => el('details', {}, el('summary', {}, text(row).slice(0, 60)), Object.keys(row.properties).length ? el('pre', {}, JSON.stringify(row.properties, null, 1)) : null, el('pre', {}, text(row)))]], shown, 'There is no row to show.'));
  const fetchRows = async (query) => get(['streams', 'rows'], { ...about, count: READ, truncate: 4000, ...query });
  const read = async (query) => {
    stop();
    const tell = (...words) => { used.textContent = line('stream', 'head', name, ...words, '--count', String(READ), ...inVhost(vhost)); };
    if (query.time !== undefined) tell('--since', new Date(query.time * 1000).toISOString()); else tell('--from', /^\d+$/.test(query.offset) ? query.offset : String(stream.first));
    shown = await fetchRows(query);
    // The offset may be a word such as "last": the first row says where it is.
    if (query.time === undefined && shown.length) tell('--from', String(shown[0].offset));
    next = shown.length ? shown.at(-1).offset + 1 : null;
    statusLine.textContent = shown.length ? `Rows ${number(shown[0].offset)} to ${number(next - 1)}.` : 'There is no row at or after this position.';
    after.disabled = next === null;
    draw();
  };
  const turn = async () => {
    try {
      const newer = await fetchRows({ offset: String(next), count: 500 });
      const hidden = newer.length >= 500 ? ' Rows arrive faster than this view can show them, so it skips some.' : '';
      if (newer.length) next = newer.at(-1).offset + 1;
      if (hidden) next = Math.max(next, (await load()).durable - SHOWN);
      shown = [...newer.reverse(), ...shown].slice(0, SHOWN);
      statusLine.textContent = `The newest row comes first; at most ${SHOWN} rows are shown.${hidden}`;
      if (newer.length) draw();
    } catch (error) { statusLine.textContent = error.message; stop(); return; }
    if (timer) timer = setTimeout(turn, TAIL_SECONDS * 1000);
  };
  const tail = async () => {
    if (timer) { stop(); await load(); return; }
    const now = await load();
    next = Math.max(now.first, now.durable - 20);
    used.textContent = line('stream', 'head', name, '--from', String(next), '--follow', ...inVhost(vhost));
    shown = [];
    draw();
    tailing.textContent = 'Stop';
    timer = 1;
    await turn();
  };
  const tailing = el('button', { type: 'button', onclick: tail }, 'Tail'), after = el('button', { type: 'button', disabled: true, onclick: () => read({ offset: String(next) }) }, 'Next rows');
  view.append(el('h1', {}, `Stream ${name}`), cards, el('h2', {}, 'Rows'), el('form', { class: 'line', onsubmit: (event) => {
    event.preventDefault();
    read(moment.value ? { time: String(Math.floor(new Date(moment.value).getTime() / 1000)) } : { offset: from.value });
  } }, el('label', {}, 'offset, first, last, or an interval such as 1h', from), el('label', {}, 'or from a time (your time zone)', moment), el('button', { class: 'main' }, 'Read'), after, tailing), statusLine, rows, used);
  replaying(view, vhost, name, stream, load);
  const exported = commandLine(line('stream', 'export', name, `${name}.parquet`, ...inVhost(vhost)));
  view.append(el('h2', {}, 'Segments and export'), segments, el('p', { class: 'soft' }, 'A segment is a file of the Arrow IPC stream format. The command writes all rows, or the rows of a time range or of some topics, as Parquet or Arrow. It needs the package pyarrow.'), exported);
  const parts = await get(['streams', 'segments'], about);
  const save = async (row) => {
    exported.textContent = line('stream', 'export', name, `${name}-${row.first}.arrows`, '--from', String(row.first), '--to', String(row.end), ...inVhost(vhost));
    const href = `${path('streams', 'segment')}?${new URLSearchParams({ ...about, segment: row.name })}`;
    // An empty range says if the broker can send the file: a refused download tells the user nothing.
    try { await ask('GET', `${href}&start=0&end=0`); } catch (error) { segments.prepend(el('p', { class: 'bad', role: 'alert' }, error.message)); return; }
    el('a', { href, download: `${name}-${row.first}.arrows` }).click();
  };
  const first = parts.slice(-SHOWN);
  segments.append(table(`${number(first.length)} of ${number(parts.length)} segments, with the times of their rows`, [['offsets', (row) => `${number(row.first)} to ${number(row.end - 1)}`], ['from (UTC)', (row) => when(row.from / 1e6), 'k'], ['to', (row) => when(row.to / 1e6), 'k'], ['size', (row) => size(row.bytes), 'n'],
    ['export', (row) => el('button', { type: 'button', onclick: () => save(row) }, 'Arrow file')]], first, 'The stream has no segment yet.'));
  await read({ offset: from.value });
  return () => { stop(); clearTimeout(timer); };
}

function replaying(view, vhost, name, stream, load) {
  const from = el('input', { type: 'number', min: 0, required: true, value: stream.first }), to = el('input', { type: 'number', min: 0, required: true, value: stream.durable });
  const exchange = el('input', { size: 18, placeholder: 'the exchange of each row' }), statusLine = el('p', { role: 'status' }), command = commandLine('');
  let going = false;
  const words = () => line('replay', name, '--from', from.value, '--to', to.value, ...(exchange.value ? ['--exchange', exchange.value] : []), ...inVhost(vhost));
  const button = el('button', {}, 'Replay…');
  const run = async () => {
    if (going) { going = false; return; }
    const first = Number(from.value), end = Math.min(Number(to.value), (await load()).durable);
    if (first >= end) { statusLine.textContent = `No row was replayed: the first offset, ${number(first)}, must be lower than the offset at which the replay ends, ${number(end)}.`; return; }
    if (!await agree(`Up to ${number(end - first)} messages, the rows from offset ${number(first)} to ${number(end - 1)}, will be published again to ${exchange.value ? `exchange ${exchange.value}` : 'the exchanges that they came from'}.`, 'Publish them', words())) return;
    going = true;
    button.textContent = 'Stop';
    let next = first, published = 0, refused = 0, ended = '';
    try {
      while (going && next < end) {
        const answer = await ask('POST', path('streams', 'replay'), { vhost, queue: name, from: next, to: end, ...(exchange.value ? { exchange: exchange.value } : {}) });
        published += answer.published;
        refused += answer.refused;
        if (answer.next <= next) break;
        next = answer.next;
        statusLine.textContent = `${number(published)} messages are published and confirmed…`;
      }
    } catch (error) { ended = ` ${error.message}.`; }
    statusLine.textContent = `${number(published)} messages are published and confirmed, ${number(refused)} were refused; the next offset is ${number(next)}.${ended}`;
    going = false;
    button.textContent = 'Replay…';
    await load();
  };
  const tell = () => { command.textContent = words(); };
  tell();
  view.append(el('h2', {}, 'Replay'), el('form', { class: 'line', oninput: tell, onsubmit: (event) => { event.preventDefault(); run(); } },
    el('label', {}, 'from offset', from), el('label', {}, 'to (not included)', to), el('label', {}, 'exchange', exchange), button), statusLine, command);
}
