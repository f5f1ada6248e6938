import { get } from './api.js';
import { commandLine, el, line, number, size, table } from './dom.js';

export const title = 'Streams';
export async function show(view) {
  view.append(el('h1', {}, 'Streams'));
  const rows = await get(['streams']);
  view.append(table('Streams and journals', Object.keys(rows[0] ?? {}).filter((name) => typeof rows[0][name] !== 'object').map((name) => [name.replaceAll('_', ' '), (row) => (typeof row[name] === 'number' ? (/bytes|size/.test(name) ? size(row[name]) : number(row[name])) : String(row[name])), typeof rows[0][name] === 'number' ? 'n' : '']), rows, 'There is no stream: declare a queue with x-queue-type=stream, or name a journal in stream.journals.'),
    el('p', {}, 'Read a stream from an offset or a time, or export it as Parquet:'), commandLine(`${line('stream', 'export', 'NAME', 'FILE.parquet')}; ${line('replay', 'NAME')}`));
}
