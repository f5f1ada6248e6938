// Takes screenshots of a file in a headless Chromium: node picture.mjs FILE PICTURE WIDTH...
//
// The screenshot for each width is PICTURE-WIDTH.png. For each width, the program prints a line of JSON with the width of the page,
// its network requests, its errors, and its smallest font size in pixels.
import { pathToFileURL } from 'node:url';
import chromium from '@sparticuz/chromium';
import { chromium as playwright } from 'playwright-core';
import { executablePath } from './chromium.mjs';

const [file, picture, ...widths] = process.argv.slice(2);
for (const width of widths.map(Number)) {
  // This browser is one process, which ends with its first page.
  const browser = await playwright.launch({ executablePath: await executablePath(), args: chromium.args, headless: true });
  const page = await browser.newPage({ viewport: { width, height: 800 } });
  const complaints = [], requests = [];
  page.on('pageerror', (error) => complaints.push(error.message));
  page.on('request', (request) => { if (!request.url().startsWith('file:')) requests.push(request.url()); });
  await page.goto(pathToFileURL(file).href);
  const layout = await page.evaluate(() => ({
    wide: document.documentElement.scrollWidth,
    smallest: Math.min(...[...document.querySelectorAll('p, td, th, li, h1, h2, h3')].map((one) => parseFloat(getComputedStyle(one).fontSize))),
    plots: [...document.querySelectorAll('svg')].map((one) => [one.getAttribute('aria-label'), one.getBoundingClientRect().width]),
  }));
  await page.screenshot({ path: `${picture}-${width}.png`, fullPage: true });
  console.log(JSON.stringify({ width, ...layout, requests, complaints }));
  await browser.close();
}
