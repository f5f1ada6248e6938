import { ask, get } from './api.js';
import { el } from './dom.js';
import * as access from './access.js';
import * as clients from './clients.js';
import * as find from './find.js';
import * as live from './live.js';
import * as node from './node.js';
import * as now from './now.js';
import * as queues from './queues.js';
import * as routing from './routing.js';
import * as streams from './streams.js';
import * as topics from './topics.js';

const VIEWS = { now, queues, topics, clients, routing, access, streams, node };
const content = document.getElementById('content'), notice = document.getElementById('notice'), views = document.getElementById('views'), who = document.getElementById('who');
let user = null, leave = null;

function trouble(text, elsewhere = '') {
  notice.replaceChildren(text, elsewhere ? el('span', {}, ' ', el('a', { href: elsewhere }, 'Open the page of the active node')) : '');
  notice.hidden = !text;
}

function login(reason = '') {
  user = null;
  live.stop();
  leave?.();
  leave = null;
  views.replaceChildren();
  who.replaceChildren();
  trouble('');
  document.getElementById('find').hidden = true;
  document.title = 'Log in · Trellis';
  const name = el('input', { autocomplete: 'username', required: true }), password = el('input', { type: 'password', autocomplete: 'current-password' });
  const problem = el('p', { class: 'bad', role: 'alert' }, reason);
  content.replaceChildren(el('form', { class: 'login', onsubmit: async (event) => {
    event.preventDefault();
    problem.textContent = '';
    try { await ask('POST', '/page/login', { user: name.value, password: password.value }); await begin(); } catch (error) { problem.textContent = error.status === 401 ? 'The user name or the password is wrong.' : error.message; password.value = ''; password.focus(); }
  } }, el('h1', {}, 'Log in to Trellis'), el('label', {}, 'User', name), el('label', {}, 'Password', password), el('button', { class: 'main' }, 'Log in'), problem));
  name.focus();
}

async function logout() {
  await ask('POST', '/page/logout').catch(() => null);
  login();
}

async function begin() {
  user = await get(['trellis', 'page', 'session']);
  document.getElementById('brand').textContent = `Trellis · ${user.node}`;
  document.getElementById('find').hidden = false;
  views.replaceChildren(...Object.entries(VIEWS).map(([name, view]) => el('a', { href: `#/${name}` }, view.title)));
  who.replaceChildren(`${user.user} `, el('button', { type: 'button', onclick: logout }, 'Log out'));
  if (user.tags.some((tag) => ['administrator', 'monitoring'].includes(tag))) live.start(trouble, () => check());
  else trouble(`The view Now shows no figures, because user ${user.user} lacks the tag monitoring or administrator.`);
  await route();
}

async function check() {
  await get(['trellis', 'page', 'session']).catch((error) => {
    if (error.status === 401) login('The session has ended. Log in again.');
    else if (error.status) trouble(`${error.message}. The page tries again.`, error.elsewhere);
    else trouble(live.SILENT);
  });
}

async function route() {
  if (!user) return;
  leave?.();
  leave = null;
  const [name, ...rest] = location.hash.replace(/^#\//, '').split('/').map(decodeURIComponent);
  const wanted = name || 'now';
  const owner = { queue: 'queues', client: 'clients', stream: 'streams' }[wanted] ?? wanted;
  for (const each of views.children) {
    if (each.getAttribute('href') === `#/${owner}`) each.setAttribute('aria-current', 'page'); else each.removeAttribute('aria-current');
  }
  const view = el('div');
  content.replaceChildren(view);
  const mine = location.hash;
  try {
    const show = { queue: () => queues.one(view, rest[0], rest[1]), client: () => clients.one(view, rest[0]), stream: () => streams.one(view, rest[0], rest[1]), find: () => find.show(view, rest[0] ?? '') }[wanted] ?? (() => VIEWS[wanted].show(view));
    if (!(wanted in VIEWS) && !['queue', 'client', 'stream', 'find'].includes(wanted)) throw new Error(`This page has no view “${wanted}”. Choose a view above.`);
    document.title = `${VIEWS[owner]?.title ?? 'Find'} · Trellis`;
    const end = await show();
    if (typeof end === 'function') { if (location.hash === mine) leave = end; else end(); }
  } catch (error) {
    if (error.status === 401) login('The session has ended. Log in again.');
    else view.append(el('p', { class: 'bad', role: 'alert' }, error.message));
  }
}

window.addEventListener('hashchange', route);
window.addEventListener('unhandledrejection', (event) => {
  event.preventDefault();
  if (event.reason?.status === 401) login('The session has ended. Log in again.');
  else trouble(event.reason?.message ?? String(event.reason));
});
document.getElementById('find').addEventListener('submit', (event) => {
  event.preventDefault();
  const needle = document.getElementById('needle').value.trim();
  if (needle) location.hash = `#/find/${encodeURIComponent(needle)}`;
});
document.addEventListener('keydown', (event) => {
  if (event.key === '/' && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? '')) {
    event.preventDefault();
    document.getElementById('needle').focus();
  }
});

begin().catch((error) => login(error.status === 401 ? '' : error.message));
