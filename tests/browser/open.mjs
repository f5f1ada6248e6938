// Opens a page in a headless Chromium: node open.mjs URL SCREENSHOT ROWS
//
// MQTT.js comes from node_modules instead of its server. After the page has tried to connect, the program prints the page's state
// as one line of JSON. For each line on the standard input, the program waits until the table has ROWS rows, prints the state
// again, and takes the screenshot.
import { readFile } from 'node:fs/promises';
import readline from 'node:readline';
import chromium from '@sparticuz/chromium';
import { chromium as playwright } from 'playwright-core';
import { executablePath } from './chromium.mjs';

const [url, screenshot, rows] = process.argv.slice(2);
const browser = await playwright.launch({ executablePath: await executablePath(), args: chromium.args, headless: true });
const page = await browser.newPage({ viewport: { width: 1000, height: 520 } });
const complaints = [];
page.on('pageerror', (error) => complaints.push(error.message));
const library = await readFile(new URL('./node_modules/mqtt/dist/mqtt.min.js', import.meta.url));
await page.route('https://unpkg.com/**', (route) => route.fulfill({
  body: library, contentType: 'text/javascript', headers: { 'access-control-allow-origin': '*' },
}));
await page.goto(url);

async function printState() {
  const state = await page.textContent('#state');
  const table = await page.$$eval('#topics tr', (rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent)));
  console.log(JSON.stringify({ state, table, complaints }));
}

await page.waitForFunction(() => /^(connected|not)/.test(document.getElementById('state').textContent));
await printState();
for await (const line of readline.createInterface({ input: process.stdin })) {
  if (line) await page.waitForFunction((count) => document.querySelectorAll('#topics tr').length >= count, Number(rows));
  await printState();
  await page.screenshot({ path: screenshot });
}
await browser.close();
