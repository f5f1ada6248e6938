// Walks the web page of a broker: node page_walk.mjs URL AUTHORIZATION DIRECTORY
//
// Loads the modules of the page from DIRECTORY, shows each view, and carries out each of its actions once: buttons, forms, filters,
// choices and links that act. The requests go to the broker at URL. There is no browser: the classes below have the few methods of the
// document that the page uses. Prints a JSON list with a row for each action: its view, its label, and the command lines that are
// shown while the action asks, and after it.
import { pathToFileURL } from 'node:url';

const [url, authorization, directory] = process.argv.slice(2);
// Texts of fields, by the label around the field, its aria-label, its placeholder or its id.
const TEXTS = {
  topic: 'plant/7/temp', payload: '21', 'topic filter': 'plant/#', 'or MQTT topic': 'plant/7/temp', user: 'admin', to: 'later', name: 'later',
  'Filter queues by name': 'ord', 'Filter connections by name': '127', 'Filter sessions by name': 'dev', 'Filter users by name': 'adm',
  'with the text': 'log', 'with the name': 'http', 'binding key': 'plant.#', 'or from a time (your time zone)': '2001-01-01T00:00:00',
};
// Values of choices, by the same.
const CHOICES = { as: 'hex', 'level, and above': 'error' };

class Element {
  constructor(name) {
    this.name = name; this.children = []; this.attributes = {}; this.listeners = {}; this.parent = null;
    this.hidden = false; this.disabled = false; this.checked = false; this._text = ''; this._value = null; this.files = [];
  }

  get parts() { return this.children.filter((one) => one instanceof Element); }
  get value() { return this._value ?? this.attributes.value ?? (this.name === 'select' ? this.find((one) => one.name === 'option')?.value : this.name === 'option' ? this.textContent : '') ?? ''; }
  set value(text) { this._value = String(text); }
  get textContent() { return this.children.map((one) => (one instanceof Element ? one.textContent : one)).join(''); }
  set textContent(text) { this.replaceChildren(String(text)); }
  get isConnected() { return this === document.body || (this.parent?.isConnected ?? false); }
  setAttribute(key, value) { this.attributes[key] = String(value); if (key === 'checked' || key === 'hidden' || key === 'disabled') this[key] = true; }
  getAttribute(key) { return this.attributes[key] ?? null; }
  removeAttribute(key) { delete this.attributes[key]; }
  addEventListener(kind, listener) { (this.listeners[kind] ??= []).push(listener); }
  append(...given) { for (const one of given) { if (one instanceof Element) { one.remove(); one.parent = this; } this.children.push(one instanceof Element ? one : String(one)); } }
  prepend(...given) { const old = this.children; this.children = []; this.append(...given); this.children.push(...old); }
  replaceChildren(...given) { this.parts.forEach((one) => { one.parent = null; }); this.children = []; this.append(...given); }
  remove() { if (this.parent) this.parent.children = this.parent.children.filter((one) => one !== this); this.parent = null; }
  contains(other) { return other === this || this.parts.some((one) => one.contains(other)); }
  all(test) { return [...(test(this) ? [this] : []), ...this.parts.flatMap((one) => one.all(test))]; }
  find(test) { return this.all(test)[0]; }
  querySelectorAll(names) { return this.all((one) => names.split(', ').includes(one.name)); }
  querySelector() { return null; }
  focus() {}
  scrollIntoView() {}
  showModal() {}
  close() {}
  click() {}
  // Calls the listeners, and those of a property such as `onchange`, as a browser does for an event.
  fire(kind) {
    const event = { preventDefault() {}, target: this };
    return Promise.all([...(this.listeners[kind] ?? []), ...(this[`on${kind}`] ? [this[`on${kind}`]] : [])].map((listener) => listener(event)));
  }
}

const body = new Element('body');
globalThis.document = {
  body, hidden: false, activeElement: body, createElement: (name) => new Element(name), createElementNS: (_, name) => new Element(name),
  getElementById: (id) => body.find((one) => one.attributes.id === id) ?? null,
};
let waiting = 0;
const send = globalThis.fetch;
globalThis.fetch = async (path, options) => {
  waiting += 1;
  try {
    const answer = await send(new URL(path, url), { ...options, headers: { ...options.headers, Authorization: authorization } });
    const text = await answer.text();
    return { ok: answer.ok, status: answer.status, headers: answer.headers, text: async () => text };
  } finally { waiting -= 1; }
};

// Waits until the page has no open request, also after it has handled the last answer.
async function settled() {
  for (let quiet = 0; quiet < 3; quiet = waiting ? 0 : quiet + 1) await new Promise((resolve) => setTimeout(resolve, 10));
}

const labelOf = (field) => field.parent?.name === 'label' ? field.parent.children.filter((one) => !(one instanceof Element)).join('').trim() : (field.attributes['aria-label'] ?? field.attributes.id ?? field.attributes.placeholder ?? '');

// Returns the actions of a part of the page, each as its label, its element and its event.
function actionsOf(root) {
  const buttons = root.all((one) => one.name === 'button' && one.listeners.click && !one.disabled && !one.hidden).map((one) => [one.textContent, one, 'click']);
  const links = root.all((one) => one.name === 'a' && one.listeners.click).map((one) => [one.attributes['aria-label'], one, 'click']);
  const forms = root.all((one) => one.name === 'form' && one.listeners.submit).flatMap((form) => form.all((one) => one.name === 'button' && !one.listeners.click).map((one) => [one.textContent, form, 'submit']));
  const inputs = root.all((one) => one.listeners.input).flatMap((one) => (one.name === 'form' ? one.all((field) => field.name === 'input' || field.name === 'select') : [one]).map((field) => [`field ${labelOf(field)}`, one, 'input']));
  const choices = root.all((one) => one.name === 'select' && (one.listeners.change || one.onchange)).map((one) => [`field ${labelOf(one)}`, one, 'change']);
  const controls = [...buttons, ...links, ...forms, ...inputs, ...choices];
  return controls.filter(([label], at) => controls.findIndex(([other]) => other === label) === at);
}

// Changes the field that an action is about: another choice, or another state of a box.
function change(root, label) {
  const field = root.find((one) => ['input', 'select'].includes(one.name) && `field ${labelOf(one)}` === label);
  if (CHOICES[labelOf(field)]) field.value = CHOICES[labelOf(field)];
  if (field.attributes.type === 'checkbox') field.checked = true;
}

function fill(root) {
  for (const field of root.all((one) => one.name === 'input')) {
    if (labelOf(field) === 'retain') field.checked = true;
    const text = TEXTS[labelOf(field)];
    if (text !== undefined && !field._value) field.value = text;
    if (field.attributes.type === 'file') field.files = [{ name: 'definitions.json', text: async () => '{"queues": []}' }];
  }
}

const commandsOf = (root) => root.all((one) => one.attributes.class === 'command').map((one) => one.textContent).filter(Boolean);
const rows = [];

// Carries out an action, agrees if it asks, and then carries out the actions that it has added to the page.
async function perform(view, root, label, known) {
  const action = actionsOf(root).find(([name]) => name === label);
  if (!action) return;
  const [, element, kind] = action;
  fill(root);
  if (label.startsWith('field ')) change(root, label);
  const done = element.fire(kind);
  done.catch(() => null);
  await settled();
  const dialog = body.find((one) => one.name === 'dialog');
  const inDialog = dialog ? commandsOf(dialog) : [];
  if (dialog) await dialog.find((one) => one.attributes.class === 'danger').fire('click');
  await Promise.race([done, new Promise((resolve) => setTimeout(resolve, 5000))]);
  await settled();
  rows.push({ view, action: label, inDialog, shown: commandsOf(root) });
  for (const [name] of actionsOf(root).reverse()) {
    if (!known.has(name)) { known.add(name); await perform(view, root, name, known); }
  }
}

const module = async (name) => import(pathToFileURL(`${directory}/${name}.js`));
const [access, clients, find, node, now, queues, routing, streams, topics] = await Promise.all(['access', 'clients', 'find', 'node', 'now', 'queues', 'routing', 'streams', 'topics'].map(module));
const VIEWS = {
  now: now.show, queues: queues.show, queue: (view) => queues.one(view, '/', 'orders'), topics: topics.show, clients: clients.show,
  client: (view) => clients.one(view, 'device'), routing: routing.show, access: access.show, streams: streams.show,
  stream: (view) => streams.one(view, '/', 'rows'), node: node.show, find: (view) => find.show(view, 'plant'),
};
for (const [name, show] of Object.entries(VIEWS)) {
  const open = async () => {
    const root = new Element('div');
    body.replaceChildren(root);
    root.end = await show(root);
    await settled();
    return root;
  };
  let root = await open();
  const known = new Set(actionsOf(root).map(([label]) => label));
  rows.push({ view: name, action: '', inDialog: [], shown: commandsOf(root) });
  for (const label of [...known]) {
    await perform(name, root, label, known);
    root.end?.();
    root = await open();
  }
  root.end?.();
}
console.log(JSON.stringify(rows));
process.exit(0);
