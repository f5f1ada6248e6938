// Elements, tables and numbers. No text is ever parsed as HTML.

export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ''));
  return element;
}

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });
export const number = (value) => whole.format(value ?? 0);
export const rate = (value) => (value > 0 && value < 10 ? short : whole).format(value ?? 0);

export function size(bytes) {
  let value = bytes ?? 0, unit = 0;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit ? short.format(value) : whole.format(value)} ${units[unit]}`;
}

export function age(seconds) {
  const steps = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const [step, unit] = steps.find(([least]) => seconds >= least) ?? [1, 's'];
  return `${whole.format(Math.floor(seconds / step))} ${unit}`;
}

export const when = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace('T', ' ');
export const time = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

// columns: [title, row => content, 'n' for numbers, sort field or '']
export function table(caption, columns, rows, empty, order = null) {
  if (!rows.length) return el('p', { class: 'soft' }, empty);
  const head = columns.map(([title, , kind, field]) => el('th', {
    scope: 'col', class: kind || null,
    'aria-sort': order && field && order.field === field ? (order.reverse ? 'descending' : 'ascending') : null,
  }, order && field ? el('button', { type: 'button', onclick: () => order.by(field) }, title) : title));
  const body = rows.map((row) => el('tr', {}, columns.map(([, content, kind]) => el('td', { class: kind || null }, content(row)))));
  return el('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': caption },
    el('table', {}, el('caption', {}, caption), el('thead', {}, el('tr', {}, head)), el('tbody', {}, body)));
}

export const link = (path, text) => el('a', { href: `#/${path.map(encodeURIComponent).join('/')}` }, text);
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
// Returns the client identifier in the name of an MQTT session's inbox, which is RabbitMQ's name.
export const clientOf = (inbox) => inbox.replace(/^mqtt-subscription-(.*)qos\d$/s, '$1');
export const line = (...words) => ['trellis', ...words].map(quoted).join(' ');
export const inVhost = (vhost) => (vhost === '/' ? [] : ['--vhost', vhost]);
// The flags of `trellis list` for the rows whose `column` contains the text; the filter's wildcards in the text are escaped.
export const containing = (column, text) => (text ? ['--filter', `${column}=*${text.replace(/[[*?]/g, '[$&]')}*`] : []);
export const commandLine = (text) => el('p', { class: 'command' }, text);
export const card = (value, text) => el('div', { class: 'card' }, el('b', {}, value), el('span', {}, text));

// The payload of a message as text. `as` is auto, text, json or hex.
export function text(row, as = 'auto') {
  const payload = String(row.payload ?? ''), binary = row.payload_encoding === 'base64';
  const cut = row.payload_bytes > 8000 ? ` … (${size(row.payload_bytes)})` : '';
  if (as === 'hex' || (binary && as === 'auto')) {
    const bytes = binary ? [...atob(payload)].map((one) => one.charCodeAt(0)) : [...new TextEncoder().encode(payload)];
    return bytes.slice(0, 1024).map((one) => one.toString(16).padStart(2, '0')).join(' ') + (bytes.length > 1024 ? ` … (${size(row.payload_bytes)})` : '');
  }
  const plain = binary ? new TextDecoder().decode(Uint8Array.from(atob(payload), (one) => one.charCodeAt(0))) : payload;
  if (as !== 'text') {
    try { return JSON.stringify(JSON.parse(plain), null, 1).slice(0, 8000) + cut; } catch (error) { if (as === 'json') return `The payload is not JSON: ${error.message}`; }
  }
  return plain.slice(0, 8000) + cut;
}

// Asks the user to confirm an action; resolves to true if the user agrees.
export function agree(question, action, command) {
  return new Promise((resolve) => {
    const done = (answer) => { dialog.close(); dialog.remove(); resolve(answer); };
    const dialog = el('dialog', { 'aria-labelledby': 'question', oncancel: () => done(false) },
      el('p', { id: 'question' }, question), commandLine(command),
      el('div', { class: 'row' },
        el('button', { type: 'button', onclick: () => done(false), autofocus: true }, 'Cancel'),
        el('button', { type: 'button', class: 'danger', onclick: () => done(true) }, action)));
    document.body.append(dialog);
    dialog.showModal();
  });
}
