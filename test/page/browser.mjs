// Chromium for the page's tests: headless, with a profile of its own, and
// without anything that would make it talk to the network by itself.

import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';

const require = createRequire(new URL('../../web/ui/package.json', import.meta.url));
const { chromium } = require('playwright-core');

const ARGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];
const PLACES = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];

/** Starts the browser; with no executable given, the distribution's. */
export async function launch(executable) {
  const executablePath = executable ?? process.env.CHROMIUM ?? PLACES.find(existsSync);
  if (!executablePath) throw new Error('no Chromium found: install it (apt install chromium) or name it with --chromium');
  // Playwright makes a fresh profile directory and removes it.
  return chromium.launch({ executablePath, headless: true, args: ARGS });
}

/**
 * Opens a page that remembers what must not happen: errors, warnings about the
 * content policy, and requests to anywhere but its own server.
 */
export async function open(browser, url, { width = 1280, height = 800, scheme = 'light' } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, acceptDownloads: true });
  const page = await context.newPage();
  page.setDefaultTimeout(15_000);
  const faults = [];
  const origin = new URL(url).origin;
  page.on('pageerror', (e) => faults.push(`error in the page: ${e.message}`));
  page.on('console', (m) => {
    // The browser itself logs each request that fails; checks cause some of them on purpose.
    if (m.type() === 'error' && !m.text().startsWith('Failed to load resource')) faults.push(`console: ${m.text()}`);
  });
  page.on('request', (r) => {
    const u = new URL(r.url());
    if (u.protocol !== 'blob:' && u.protocol !== 'data:' && u.origin !== origin) faults.push(`request to another server: ${r.url()}`);
  });
  await page.goto(url, { waitUntil: 'domcontentloaded' });
  return { page, context, faults };
}
