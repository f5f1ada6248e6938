// The events of the broker, once a second, and the samples of the last five minutes.

export const samples = [];
const KEPT = 300;
const listeners = new Set();
// Milliseconds until the page opens the event stream again, after the broker or a standby has refused it.
const AGAIN = 3000;
export const SILENT = 'The broker does not answer. The page tries again.';
let source = null, again = 0;

export const latest = () => samples.at(-1) ?? null;
export function listen(tell) {
  listeners.add(tell);
  return () => listeners.delete(tell);
}

export function start(onTrouble, onEnd) {
  stop();
  source = new EventSource('/page/events');
  source.onmessage = (event) => {
    const sample = JSON.parse(event.data);
    const last = latest();
    if (last && sample.uptime < last.uptime) samples.length = 0;  // The broker was started again.
    samples.push(sample);
    if (samples.length > KEPT) samples.shift();
    onTrouble('');
    for (const tell of [...listeners]) tell(sample);
  };
  source.addEventListener('ended', onEnd);
  source.addEventListener('trouble', (event) => onTrouble(`No new figures: ${JSON.parse(event.data).reason}. The page tries again.`));
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) { onTrouble(SILENT); return; }
    again = setTimeout(() => start(onTrouble, onEnd), AGAIN);
    onEnd();
  };
}

export function stop() {
  clearTimeout(again);
  source?.close();
  source = null;
}
