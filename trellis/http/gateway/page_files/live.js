// The events of the broker, once a second, and the samples of the last five minutes.

export const samples = [];
const KEPT = 300;
const listeners = new Set();
let source = null;

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
  source.onerror = () => {
    onTrouble('The broker does not answer. The page tries again.');
    if (source.readyState === EventSource.CLOSED) onEnd();
  };
}

export function stop() {
  source?.close();
  source = null;
}
