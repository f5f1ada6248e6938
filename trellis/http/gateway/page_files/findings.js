import { commandLine, el } from './dom.js';

// Shows the problems that `trellis why` prints, when the broker has answered.
export async function findings(place, answer) {
  place.replaceChildren(el('p', { class: 'soft' }, 'The broker looks for problems…'));
  let report;
  try { report = await answer; } catch (error) { place.replaceChildren(el('p', { class: 'soft' }, error.message)); return; }
  place.replaceChildren(...(report.findings.length
    ? [el('ul', { class: 'plain' }, report.findings.map((one) => el('li', {}, el('b', { class: 'warn' }, one.problem.replaceAll('_', ' ')), `: ${one.text}`, one.next ? commandLine(one.next) : null)))]
    : [el('p', { class: 'soft' }, 'No problem found.'), commandLine(report.next)]));
}
