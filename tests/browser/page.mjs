// Drives the broker's web page in a headless Chromium: node page.mjs URL PICTURES
//
// Each line on the standard input is one command as JSON; the program answers each with a line of JSON.
//   {"do": "open", "width": 1280, "scheme": "dark"}   a new browser at the page
//   {"do": "visit", "url": "...", "until": "CSS selector"}   another page in the same browser
//   {"do": "href", "selector": "..."}                 the URL of a link
//   {"do": "login", "user": "admin", "password": "..."}
//   {"do": "view", "hash": "#/queues", "until": "CSS selector"}
//   {"do": "upload", "selector": "...", "path": "..."}, {"do": "download", "selector": "..."}
//   {"do": "fill", "selector": "...", "text": "..."}, {"do": "choose", "selector": "...", "value": "..."}, {"do": "click", "selector": "..."}, {"do": "press", "key": "/"}
//   {"do": "wait", "selector": "...", "text": "..."}  until an element with this selector has this text
//   {"do": "gone", "selector": "..."}                 until the element is hidden
//   {"do": "picture", "name": "now"}                  also returns what axe finds, the width of the page, and its errors
import readline from 'node:readline';
import { createRequire } from 'node:module';
import chromium from '@sparticuz/chromium';
import { chromium as playwright } from 'playwright-core';
import { executablePath } from './chromium.mjs';

const [url, pictures] = process.argv.slice(2);
const axe = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
let browser = null, page = null, width = 0, complaints = [], elsewhere = [];

const actions = {
  async open(given) {
    await browser?.close();
    width = given.width;
    // The policy of the page forbids foreign scripts, so axe is injected past it.
    browser = await playwright.launch({ executablePath: await executablePath(), args: chromium.args, headless: true });
    const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme: given.scheme ?? 'light', bypassCSP: true });
    page = await context.newPage();
    complaints = []; elsewhere = [];
    page.on('pageerror', (error) => complaints.push(error.message));
    page.on('request', (request) => { if (!request.url().startsWith(url) && !request.url().startsWith('data:')) elsewhere.push(request.url()); });
    await page.goto(url);
    await page.waitForSelector('form.login');
    return { paint: await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null) };
  },
  async visit({ url: other, until }) {
    await page.goto(other);
    await page.waitForSelector(until);
    return { text: await page.textContent('body') };
  },
  async href({ selector }) { return { href: await page.getAttribute(selector, 'href') }; },
  async login({ user, password }) {
    await page.fill('input[autocomplete=username]', user);
    await page.fill('input[type=password]', password);
    await page.click('form.login button');
    await page.waitForSelector('#views a, .login [role=alert]:not(:empty)');
    return { views: await page.locator('#views a').allTextContents(), alerts: await page.locator('.login [role=alert]').allTextContents() };
  },
  async view({ hash, until }) {
    await page.evaluate((wanted) => { location.hash = wanted; }, hash);
    await page.waitForSelector(until);
    return { text: await page.textContent('#content') };
  },
  async upload({ selector, path }) { await page.setInputFiles(selector, path); return {}; },
  async download({ selector }) {
    const [saved] = await Promise.all([page.waitForEvent('download'), page.click(selector)]);
    const path = `${pictures}/${saved.suggestedFilename()}`;
    await saved.saveAs(path);
    return { path };
  },
  async fill({ selector, text }) { await page.fill(selector, text); return {}; },
  async choose({ selector, value }) { await page.selectOption(selector, value); return {}; },
  async click({ selector }) { await page.click(selector); return {}; },
  async press({ key }) { await page.keyboard.press(key); return { focused: await page.evaluate(() => document.activeElement.id) }; },
  async wait({ selector, text }) {
    await page.waitForFunction(([one, wanted]) => [...document.querySelectorAll(one)].some((element) => !element.hidden && element.textContent.includes(wanted)), [selector, text], { timeout: 30000 });
    return { text: await page.textContent('#content') };
  },
  async gone({ selector }) { await page.waitForSelector(selector, { state: 'hidden' }); return {}; },
  async picture({ name }) {
    await page.addScriptTag({ path: axe });
    const report = await page.evaluate(() => axe.run({ resultTypes: ['violations'] }));
    await page.screenshot({ path: `${pictures}/${name}-${width}.png`, fullPage: true });
    return {
      serious: report.violations.filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) => [one.id, one.nodes[0].html]),
      wide: await page.evaluate(() => document.documentElement.scrollWidth), complaints, elsewhere,
      // A label of one word that takes two lines is broken within the word.
      broken: await page.evaluate(() => [...document.querySelectorAll('.card span')].filter((one) => !one.textContent.includes(' ') && one.getClientRects().length > 1).map((one) => one.textContent)),
    };
  },
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const given = JSON.parse(line);
  try { console.log(JSON.stringify(await actions[given.do](given))); } catch (error) { console.log(JSON.stringify({ failed: String(error) })); }
}
await browser?.close();
