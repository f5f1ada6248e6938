import { commandLine, el } from './dom.js';

// Shows the problems that `trellis why` prints, when the broker has answered.
export async function findings(place, answer) {
  place.replaceChildren(el('p', { class: 'soft' }, 'Looking…'));
  let found;
  try { found = await answer; } catch (error) { place.replaceChildren(el('p', { class: 'soft' }, error.message)); return; }
  place.replaceChildren(...(found.findings.length
    ? [el('ul', { class: 'plain' }, found.findings.map((one) => el('li', {}, el('b', { class: 'warn' }, one.problem.replaceAll('_', ' ')), `: ${one.text}`, one.next ? commandLine(one.next) : null)))]
    : [el('p', { class: 'soft' }, 'No problem found.'), commandLine(found.next)]));
}
