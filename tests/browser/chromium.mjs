// Unpacks the headless Chromium of the package @sparticuz/chromium, and prints its path: node chromium.mjs
//
// The package itself unpacks the program piece by piece into the directory for temporary files, where another process finds it
// before it is complete. Here the program is unpacked into a new directory, which gets its final name when it is complete.
import { existsSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import chromium from '@sparticuz/chromium';

const directory = fileURLToPath(new URL('node_modules/.chromium', import.meta.url));

// Returns the path of Chromium, after unpacking it if no process has done that yet.
export async function executablePath() {
  if (!existsSync(directory)) await unpack();
  return `${directory}/chromium`;
}

async function unpack() {
  const unpacked = mkdtempSync(`${directory}-`);
  const { TMPDIR } = process.env;
  process.env.TMPDIR = unpacked;
  try {
    await chromium.executablePath();
    renameSync(unpacked, directory);
  } catch (error) {
    rmSync(unpacked, { recursive: true });
    if (!existsSync(directory)) throw error; // Otherwise, another process was faster.
  } finally {
    if (TMPDIR === undefined) delete process.env.TMPDIR; else process.env.TMPDIR = TMPDIR;
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log(await executablePath());
