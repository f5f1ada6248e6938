import { get } from './api.js';
import { pager } from './pager.js';
import { commandLine, el, inVhost, line, number, table } from './dom.js';

export const title = 'Access';
const SHOWN = 200;
export async function show(view) {
  view.append(el('h1', {}, 'Access'));
  const first = { page: 1, page_size: SHOWN };
  const [permissions, rules, vhosts] = await Promise.all([get(['permissions'], first), get(['topic-rules'], first), get(['vhosts'], { columns: 'name' })]);
  const most = (page, text) => `${text}: ${number(page.items.length)} of ${number(page.total_count)} are shown`;
  const user = el('input', { size: 14, required: true, value: permissions.items[0]?.user ?? '' }), users = el('section'), topic = el('input', { size: 28, required: true, placeholder: 'plant/7/temperature' });
  const vhost = el('select', {}, vhosts.map((row) => el('option', {}, row.name))), answer = el('div', { role: 'status' });
  const filter = el('input', { size: 28, required: true, placeholder: 'plant/+/secret' }), readers = el('div', { role: 'status' });
  const readersVhost = el('select', {}, vhosts.map((row) => el('option', {}, row.name)));
  view.append(el('h2', {}, 'May a user publish to a topic?'), el('form', { class: 'line', onsubmit: async (event) => {
    event.preventDefault();
    const query = { mqtt: topic.value, user: user.value, vhost: vhost.value };
    let parts;
    try {
      const verdict = await get(['route'], { ...query, limit: 1 });
      parts = [el('p', { class: verdict.refusal ? 'bad' : '' }, verdict.refusal ? `No: ${verdict.refusal}` : `Yes: user ${query.user} may publish to ${query.mqtt}.`),
        el('ul', { class: 'plain' }, verdict.rights.map((row) => el('li', {}, `${row.right} ${row.rule ? `“${row.rule}”` : '(no rule)'} ${row.allows ? 'allows' : 'does not allow'} ${row.on}`)))];
    } catch (error) { parts = [el('p', { class: 'bad' }, error.message)]; }
    answer.replaceChildren(...parts, commandLine(line('route', '--mqtt', query.mqtt, '--publisher', query.user, ...inVhost(query.vhost))));
  } }, el('label', {}, 'user', user), el('label', {}, 'topic', topic), el('label', {}, 'vhost', vhost), el('button', { class: 'main' }, 'Check')), answer,
  el('h2', {}, 'Which users may read the topics of a filter?'), el('form', { class: 'line', onsubmit: async (event) => {
    event.preventDefault();
    let part;
    try {
      const allowed = await get(['topic-readers', readersVhost.value], { filter: filter.value });
      part = table(`Users that may read topics of ${filter.value}`, [['user', (row) => row.user], ['reads', (row) => row.reads === 'all' ? 'all topics' : 'some topics'], ['permission to read', (row) => row.permission], ['rules that decide', (row) => el('ul', { class: 'plain' }, row.rules.map((rule) => el('li', {}, rule)))]], allowed, 'No user may read a topic of this filter.');
    } catch (error) { part = el('p', { class: 'bad' }, error.message); }
    readers.replaceChildren(part, commandLine(line('permissions', 'readers', filter.value, ...inVhost(readersVhost.value))));
  } }, el('label', {}, 'topic filter', filter), el('label', {}, 'vhost', readersVhost), el('button', { class: 'main' }, 'List')), readers,
  users,
  el('h2', {}, 'Permissions'), table(most(permissions, 'Patterns of the names that a user may configure, write to and read from'), [['user', (row) => row.user], ['vhost', (row) => row.vhost], ['configure', (row) => row.configure], ['write', (row) => row.write], ['read', (row) => row.read], ['role', (row) => row.role ?? '']], permissions.items, 'No user has permissions.'),
  el('h2', {}, 'Topic rules'), table(most(rules, 'The first rule that matches a topic decides'), [['user', (row) => row.user], ['vhost', (row) => row.vhost], ['rules', (row) => el('ul', { class: 'plain' }, row.rules.map((rule) => el('li', {}, rule)))]], rules.items, 'No user has topic rules: all topics are allowed.'),
  commandLine(line('permissions', 'list')));
  users.append(el('h2', {}, 'Users'));
  return pager(users, 'user', 'name', (query) => get(['users'], query), () => [['name', (row) => row.name, '', 'name'], ['tags', (row) => [row.tags].flat().join(', ')], ['role', (row) => row.role ?? '', '', 'role']], 'There is no user.', 'users');
}
