import { commandLine, containing, el, line, number, table } from './dom.js';

// Number of rows above which a list is renewed less often.
const LONG = 1000;
const SIZE = 50;

// Calls `renew` again and again, `pause()` milliseconds after each call, but not in a hidden tab. `first` is the promise of the first
// call. Returns a function that ends the calls.
export function repeat(renew, pause, first = renew()) {
  let ended = false;
  (async () => {
    await first;
    while (!ended) {
      await new Promise((resolve) => setTimeout(resolve, pause()));
      if (!ended && !document.hidden) await renew();
    }
  })();
  return () => { ended = true; };
}

// Shows a list that the server filters, sorts and pages, with the command that prints the same rows, and renews it. `kind` is the list's
// name in `trellis list`, and `names` has the columns with another name there. Returns a function that ends the renewal.
export function pager(view, noun, sort, load, columns, empty, kind, names = {}) {
  const state = { page: 1, field: sort, reverse: sort !== 'name', name: '' };
  const place = el('div'), used = commandLine(''), where = el('span', { class: 'soft', role: 'status' });
  const step = (by) => { state.page += by; draw(); };
  const before = el('button', { type: 'button', disabled: true, onclick: () => step(-1) }, 'Previous'), after = el('button', { type: 'button', disabled: true, onclick: () => step(1) }, 'Next');
  const filter = el('input', { type: 'search', placeholder: `Filter by name`, 'aria-label': `Filter ${noun}s by name`, oninput: () => { state.name = filter.value; state.page = 1; draw(); } });
  view.append(el('div', { class: 'row' }, filter, before, after, where), place, used);
  const order = { get field() { return state.field; }, get reverse() { return state.reverse; }, by(field) { state.reverse = state.field === field ? !state.reverse : field !== 'name'; state.field = field; state.page = 1; draw(); } };
  let turn = 0, total = 0;
  async function draw() {
    const mine = turn += 1, column = (field) => names[field] ?? field;
    used.textContent = line('list', kind, ...containing(column('name'), state.name), '--sort', column(state.field), ...(state.reverse ? ['--reverse'] : []), '--limit', String(SIZE * state.page));
    let page;
    try {
      page = await load({ page: state.page, page_size: SIZE, sort: state.field, sort_reverse: state.reverse, name: state.name });
    } catch (error) {
      if (error.status === 400 && state.page > 1) { state.page = 1; return draw(); }
      if (mine === turn) place.replaceChildren(el('p', { class: 'bad' }, error.message));
      return undefined;
    }
    if (mine !== turn) return undefined;
    total = page.total_count;
    const active = document.activeElement, key = place.contains(active) ? active.textContent : null;
    place.replaceChildren(table(`${number(page.filtered_count)} of ${number(page.total_count)} ${noun}s`, columns(order), page.items, state.name ? `No ${noun} has a name with this text.` : empty, order));
    if (key !== null) [...place.querySelectorAll('button, a')].find((one) => one.textContent === key)?.focus();
    before.disabled = page.page <= 1;
    after.disabled = page.page >= page.page_count;
    where.textContent = `page ${number(page.page)} of ${number(Math.max(1, page.page_count))}`;
    return undefined;
  }
  // A long list costs the broker time, so it is renewed less often.
  return repeat(draw, () => (total > LONG ? 30000 : 5000));
}
