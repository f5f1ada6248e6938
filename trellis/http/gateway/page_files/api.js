// Requests to the HTTP API, with the session's cookie.

export class Refused extends Error {
  constructor(status, reason) { super(reason); this.status = status; }
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
  if (!response.ok) throw new Refused(response.status, value?.reason ?? `status ${response.status}`);
  return value;
}

export const path = (...parts) => `/api/${parts.map(encodeURIComponent).join('/')}`;
export const get = (parts, query = {}) => {
  const text = new URLSearchParams(query).toString();
  return ask('GET', path(...parts) + (text ? `?${text}` : ''));
};
