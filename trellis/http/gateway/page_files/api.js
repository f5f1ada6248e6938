// Requests to the HTTP API, with the session's cookie.

// A request that the broker has refused. `elsewhere` is the URL of the active node's page, if this node is a standby.
export class Refused extends Error {
  constructor(status, reason, elsewhere = '') { super(reason); this.status = status; this.elsewhere = elsewhere; }
}

export async function ask(method, path, body) {
  let response;
  try {
    response = await fetch(path, {
      method, headers: { 'X-Trellis-Page': '1', ...(body === undefined ? {} : { 'Content-Type': 'application/json' }) },
      body: body === undefined ? undefined : JSON.stringify(body), cache: 'no-store',
    });
  } catch {
    throw new Refused(0, 'the broker does not answer');
  }
  const text = await response.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch { /* The answer is not JSON: the error shows the status instead. */ }
  if (!response.ok) {
    // A standby answers with plain text, and with the header Location if it knows the address of the active node.
    const active = response.headers.get('Location'), plain = response.headers.get('Content-Type')?.startsWith('text/plain') ? text.trim() : '';
    throw new Refused(response.status, value?.reason ?? (plain || `the broker answered with the status ${response.status}`), active ? `${new URL(active).origin}/` : '');
  }
  return value;
}

export const path = (...parts) => `/api/${parts.map(encodeURIComponent).join('/')}`;
export const get = (parts, query = {}) => {
  const text = new URLSearchParams(query).toString();
  return ask('GET', path(...parts) + (text ? `?${text}` : ''));
};
