// What the page must do, as a reader would do it.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';

const rowsOf = (page) => page.locator('.functions [role=row][aria-rowindex]:not(.table-head)');
const rowNamed = (page, name) => rowsOf(page).filter({ has: page.getByRole('button', { name, exact: true }) });
const searchBox = (page) => page.getByRole('textbox', { name: 'Search functions' });
const quoted = (name) => `"${name}"`;

/** The address with a query of the page's state. */
export const at = (base, query = {}) => new URL('?' + new URLSearchParams(query), base).href;

async function functionNames(page) {
  const rows = await rowsOf(page).evaluateAll((list) =>
    list.map((r) => ({ i: Number(r.getAttribute('aria-rowindex')), name: r.querySelector('.link').textContent })),
  );
  return rows.sort((a, b) => a.i - b.i).map((r) => r.name);
}

/** The picture comes by itself, without a reload, and has the function in it. */
export async function showsFunction(page, name, wait) {
  await searchBox(page).waitFor({ timeout: wait });
  await searchBox(page).fill(quoted(name));
  await rowNamed(page, name).waitFor({ timeout: wait });
}

/**
 * The search lights the function up in the flame graph and nothing else: the lit
 * bars are looked for in the picture itself, and the mouse is held over one.
 */
export async function highlights(page, name) {
  await searchBox(page).fill(quoted(name));
  const canvas = page.locator('.flame-canvas canvas');
  const lit = async () =>
    canvas.evaluate((c) => {
      const scale = c.width / c.clientWidth;
      const image = c.getContext('2d').getImageData(0, 0, c.width, c.height);
      const found = [];
      for (let row = 0; row * 22 * scale < c.height; row++) {
        const y = Math.round((row * 22 + 4) * scale);
        let run = 0;
        for (let x = 0; x < c.width; x++) {
          const [r, g, b, a] = image.data.subarray((y * c.width + x) * 4, (y * c.width + x) * 4 + 4);
          const [low, high] = [Math.min(r, g, b), Math.max(r, g, b)];
          const light = (low + high) / 510;
          const saturation = high === low ? 0 : (high - low) / 255 / (1 - Math.abs(2 * light - 1));
          run = a === 255 && saturation > 0.3 ? run + 1 : 0;
          if (run === 6) found.push({ x: (x - 3) / scale, y: y / scale });
        }
      }
      return found;
    });
  let bars = [];
  for (let i = 0; i < 40 && bars.length === 0; i++) {
    await page.waitForTimeout(100);
    bars = await lit();
  }
  assert.ok(bars.length > 0, `the search for ${name} lit no bar of the flame graph`);
  for (const position of bars.slice(0, 5)) {
    await canvas.hover({ position });
    const text = await page.locator('.flame-tooltip-name').textContent();
    assert.equal(text, name, 'the lit bar is that of the function');
  }
  await page.mouse.move(2, 2);
}

async function addFilter(page, label, op, value) {
  await page.getByRole('button', { name: 'Add a label filter' }).click();
  await page.getByRole('combobox', { name: 'Label', exact: true }).fill(label);
  await page.getByRole('combobox', { name: 'Comparison' }).selectOption(op);
  await page.getByRole('combobox', { name: 'Value', exact: true }).fill(value);
  await page.getByRole('button', { name: 'Add filter' }).click();
}

/** A label filter narrows what is shown, and what is shown comes back without it. */
export async function filters(page, name, service) {
  await searchBox(page).fill(quoted(name));
  await rowNamed(page, name).waitFor();
  await addFilter(page, 'service_name', '!=', service);
  await rowNamed(page, name).waitFor({ state: 'detached' });
  assert.match(new URL(page.url()).search, /filter=service_name%21%3D/, 'the filter stands in the address');
  await page.getByRole('button', { name: /^Remove the filter/ }).click();
  await rowNamed(page, name).waitFor();
  await addFilter(page, 'service_name', '=', service);
  await page.waitForFunction(() => document.querySelectorAll('.stale').length === 0);
  await rowNamed(page, name).waitFor();
  await page.getByRole('button', { name: /^Remove the filter/ }).click();
}

/** The suggestions of the filter are those that the agent has. */
export async function suggests(page, label, value) {
  await page.getByRole('button', { name: 'Add a label filter' }).click();
  await page.getByRole('combobox', { name: 'Label', exact: true }).fill(label);
  await page.getByRole('option', { name: label, exact: true }).click();
  await page.getByRole('combobox', { name: 'Value', exact: true }).fill(value.slice(0, 3));
  await page.getByRole('option', { name: value, exact: true }).waitFor();
  await page.keyboard.press('Escape');
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: 'Add filter' }).waitFor({ state: 'detached' });
}

/** The service list narrows to one service. */
export async function choosesService(page, service) {
  const box = page.getByRole('combobox', { name: 'Service', exact: true });
  await box.click();
  await box.fill(service);
  await page.getByRole('option', { name: service, exact: true }).click();
  await page.waitForURL((u) => u.searchParams.get('service') === service);
}

/** The table sorts by each column, both ways. */
export async function sorts(page) {
  await searchBox(page).fill('');
  const header = (text) => page.locator('.functions').getByRole('columnheader', { name: text });
  const click = async (text, want) => {
    await header(text).getByRole('button').click();
    assert.equal(await header(text).getAttribute('aria-sort'), want);
    return functionNames(page);
  };
  const plain = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  const up = await click('Function', 'ascending');
  assert.ok(up.length > 1, 'there is more than one function to sort');
  assert.deepEqual(up, [...up].sort(plain));
  const down = await click('Function', 'descending');
  assert.deepEqual(down, [...down].sort(plain).reverse());
  assert.notDeepEqual(up, down);
  for (const [text, cell] of [['Total', 2], ['Self', 1]]) {
    await click(text, 'descending');
    const shares = await rowsOf(page).evaluateAll(
      (list, k) =>
        list
          .map((r) => [Number(r.getAttribute('aria-rowindex')), r.children[k].querySelector('.figure-share').textContent])
          .sort((a, b) => a[0] - b[0])
          .map(([, t]) => (t.startsWith('<') ? 0.05 : parseFloat(t))),
      cell,
    );
    assert.deepEqual(shares, [...shares].sort((a, b) => b - a), `${text} falls from row to row`);
    assert.ok(shares[0] > 0, `${text} of the first row is more than nothing`);
  }
}

/** The theme switches, and is remembered. */
export async function switchesTheme(page) {
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  assert.equal(await theme(), 'light', 'as the system says');
  const light = await background();
  const button = page.getByRole('button', { name: /^Theme:/ });
  while ((await theme()) !== 'dark') await button.click();
  assert.notEqual(await background(), light);
  await page.reload();
  assert.equal(await theme(), 'dark', 'remembered');
  while (!/as the system/.test((await button.getAttribute('aria-label')).split('.')[0])) await button.click();
  assert.equal(await theme(), 'light');
}

/** Dragging over the chart takes the range between. */
export async function zooms(page) {
  const box = await page.locator('.chart-canvas .u-over').boundingBox();
  await page.mouse.move(box.x + box.width * 0.3, box.y + 40);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 45, { steps: 5 });
  await page.mouse.up();
  await page.waitForURL((u) => u.searchParams.has('from'));
  const p = new URL(page.url()).searchParams;
  const minutes = (Number(p.get('to')) - Number(p.get('from'))) / 60_000;
  assert.ok(minutes > 4 && minutes < 5, `30 % of 15 minutes is 4.5, not ${minutes}`);
  await page.goBack();
  await page.waitForURL((u) => !u.searchParams.has('from'));
}

/** The keyboard goes through the flame graph, and says where it is. */
export async function walksByKeyboard(page) {
  await searchBox(page).fill('');
  const graph = page.getByRole('application');
  await graph.focus();
  for (const key of ['ArrowDown', 'ArrowDown']) await page.keyboard.press(key);
  await page.locator('.flame-status').waitFor();
  assert.match(await page.locator('.flame-status').textContent(), /: total .+, self /);
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Show the whole flame graph' }).waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: 'Show the whole flame graph' }).waitFor({ state: 'detached' });
}

/** Callers and callees of a function, from the table. */
export async function showsCallers(page, name) {
  await searchBox(page).fill(quoted(name));
  await rowNamed(page, name).getByRole('button', { name: 'Callers and callees' }).click({ force: true });
  await page.getByText('Callees', { exact: true }).waitFor();
  await page.getByRole('button', { name: 'Back to the whole flame graph' }).click();
  await page.locator('.flame-canvas canvas').waitFor();
}

/** The download is a gzipped pprof that has the function in its strings. */
export async function downloads(page, name) {
  const wait = page.waitForEvent('download');
  await page.getByRole('button', { name: 'pprof' }).click();
  const download = await wait;
  assert.match(download.suggestedFilename(), /\.pb\.gz$/);
  const profile = gunzipSync(readFileSync(await download.path()));
  if (name) assert.ok(profile.includes(Buffer.from(name)), `the downloaded profile names ${name}`);
  return profile.length;
}

const kindButton = (page, name) => page.getByRole('group', { name: 'CPU or off-CPU' }).getByRole('button', { name, exact: true });
const waitsCard = (page) => page.getByRole('region', { name: 'Time off the CPU by wait' });
const waitButton = (page, name) => waitsCard(page).getByRole('group', { name: 'What was waited for' }).getByRole('button', { name: new RegExp(`^${name} `) });
const idleToggle = (page) => waitsCard(page).getByRole('button', { name: /^Leave out idle/ });
const settled = (page) => page.waitForFunction(() => document.querySelectorAll('.stale').length === 0);

/** A duration as the page writes it, in seconds. */
function seconds(text) {
  const units = { h: 3600, min: 60, s: 1, ms: 1e-3, 'µs': 1e-6, ns: 1e-9 };
  return [...text.matchAll(/([\d.,]+) (h|min|s|ms|µs|ns)\b/g)].reduce((sum, [, n, unit]) => sum + Number(n.replace(/,/g, '')) * units[unit], 0);
}

/** Figures of two answers, a moment apart, that should be of the same thing. */
function close(a, b, text) {
  assert.ok(Math.abs(a - b) <= 0.02 * Math.max(a, b) + 1, `${text}: ${a} and ${b} seconds`);
}

const total = async (where) => seconds(await where.locator('.total b').textContent());
const causes = (page) =>
  waitsCard(page)
    .locator('.legend button')
    .evaluateAll((list) => list.map((b) => ({ name: b.querySelector('.legend-name').textContent, time: b.querySelector('.legend-value').textContent })));

/** Off-CPU time by what was waited for adds up to the profile, largest first; a click picks a cause. */
export async function breaksDownWaits(page, base, service, cause) {
  await page.goto(at(base, { service, live: 'off' }));
  await kindButton(page, 'Off-CPU').click();
  await page.waitForURL((u) => u.searchParams.get('type')?.startsWith('off_cpu:'));
  await waitButton(page, cause).waitFor();
  await settled(page);
  const profile = page.getByRole('region', { name: 'Profile', exact: true });
  const listed = await causes(page);
  const times = listed.map((c) => seconds(c.time));
  assert.ok(listed.length > 1, `there is more than ${cause}`);
  times.slice(1).forEach((t, i) => assert.ok(t <= times[i], 'the largest is first'));
  close(times.reduce((a, b) => a + b, 0), await total(profile), 'the causes add up to the profile');

  await waitButton(page, cause).click();
  await page.waitForURL((u) => u.searchParams.get('filter') === `wait=${cause}`);
  await settled(page);
  assert.equal(await waitButton(page, cause).getAttribute('aria-pressed'), 'true');
  const picked = (await causes(page)).find((c) => c.name === cause);
  close(seconds(picked.time), await total(profile), `only ${cause} is shown`);
  assert.equal((await causes(page)).length, listed.length, 'the others are still there to be picked');

  // CPU time has no such label: the chip stays, and filters nothing.
  await kindButton(page, 'CPU').click();
  await page.locator('.chip.unused').waitFor();
  await settled(page);
  assert.ok((await total(profile)) > 0, 'CPU time is there');
  await kindButton(page, 'Off-CPU').click();
  await waitButton(page, cause).click();
  await page.waitForURL((u) => !u.searchParams.has('filter'));
}

/** Idle threads are left out, by a filter that stands in the address. */
export async function leavesOutIdle(page, base, service) {
  await page.goto(at(base, { service, type: 'off_cpu:off_cpu:nanoseconds::', live: 'off' }));
  await idleToggle(page).waitFor();
  await settled(page);
  const profile = page.getByRole('region', { name: 'Profile', exact: true });
  const all = await total(profile);
  const idle = seconds(await idleToggle(page).textContent());
  assert.ok(idle > 0, 'some threads are idle');
  await idleToggle(page).click();
  await page.waitForURL((u) => u.searchParams.get('filter') === 'idle!=true');
  await settled(page);
  assert.equal(await idleToggle(page).getAttribute('aria-pressed'), 'true');
  close(all - idle, await total(profile), 'all but the idle are shown');
  await idleToggle(page).click();
  await page.waitForURL((u) => !u.searchParams.has('filter'));
}

/** CPU and off-CPU stand side by side, of the same service and with one search, and below each other where there is no room. */
export async function showsSideBySide(page, base, service) {
  await page.goto(at(base, { service, live: 'off' }));
  await kindButton(page, 'Side by side').click();
  await page.waitForURL((u) => u.searchParams.get('side') === 'on');
  const sides = ['CPU time', 'Time off the CPU'].map((name) => page.getByRole('region', { name, exact: true }));
  for (const s of sides) {
    await s.locator('.flame-canvas canvas').waitFor();
    assert.ok((await total(s)) > 0, 'each has its total');
  }
  await searchBox(page).fill('schedule');
  for (const s of sides) await s.getByText(/functions? found/).waitFor();
  await searchBox(page).fill('');

  const [left, right] = await Promise.all(sides.map((s) => s.boundingBox()));
  assert.ok(right.x >= left.x + left.width - 1 && Math.abs(right.y - left.y) < 2, 'beside each other');
  const size = page.viewportSize();
  await page.setViewportSize({ width: 420, height: 900 });
  const [upper, lower] = await Promise.all(sides.map((s) => s.boundingBox()));
  assert.ok(lower.y >= upper.y + upper.height - 1 && Math.abs(lower.x - upper.x) < 2, 'below each other on a narrow screen');
  assert.ok(await page.evaluate(() => document.querySelector('main').scrollWidth <= innerWidth), 'nothing is wider than the screen');
  await page.setViewportSize(size);

  await page.reload();
  await sides[1].locator('.flame-canvas canvas').waitFor();
  await kindButton(page, 'CPU').click();
  await page.waitForURL((u) => !u.searchParams.has('side'));
}

/** Where there are no off-CPU profiles, the page says how to get them. */
export async function tellsHowToEnableOffCPU(page) {
  await kindButton(page, 'Side by side').click();
  await page.getByRole('region', { name: 'CPU time', exact: true }).locator('.flame-canvas canvas').waitFor();
  await page.getByText('off_cpu:', { exact: false }).waitFor();
  await kindButton(page, 'Off-CPU').click();
  await page.getByText('No off-CPU profiles in this time').waitFor();
  assert.equal(await waitsCard(page).count(), 0);
}

/** The targets page has the process with its service, and tells the reason. */
export async function listsTarget(page, base, pid, service) {
  await page.goto(at(base, { page: 'targets' }));
  await page.getByRole('textbox', { name: 'Search processes' }).fill(quoted(pid));
  const row = page.locator(`.process-table [data-pid="${pid}"]`);
  await row.waitFor();
  assert.equal(await row.locator('.service').innerText(), service);
  assert.notEqual((await row.locator('.why').innerText()).trim(), '–', 'a reason is given');
  await row.getByRole('button', { name: `Details of process ${pid}` }).click();
  await page.locator('.details').getByText(`service_name=${service}`).waitFor();
  await row.getByRole('link', { name: service }).click();
  await page.waitForURL((u) => u.searchParams.get('service') === service && !u.searchParams.has('page'));
}

/** However many processes there are, only those in view are in the document. */
export async function boundsTargets(page, base) {
  await page.goto(at(base, { page: 'targets' }));
  await page.locator('.process-table [data-pid]').first().waitFor();
  const all = Number(await page.locator('.process-table').getAttribute('aria-rowcount'));
  const made = await page.locator('.process-table [data-pid]').count();
  assert.ok(made < 100, `${made} rows were made of ${all}`);
  return all;
}

/** The status page has the account of the samples and the kernel. */
export async function showsStatus(page, base, kernel) {
  await page.goto(at(base, { page: 'status' }));
  await page.getByText('Taken in the kernel').waitFor();
  const taken = (await page.locator('.tile', { hasText: 'Taken in the kernel' }).locator('b').textContent()).replace(/\D/g, '');
  assert.ok(Number(taken) > 0, 'samples were taken');
  if (kernel) await page.getByText(kernel).first().waitFor();
}

/** When the server goes away, the last picture stays and the page says so. */
export async function survivesSilence(page, name) {
  await searchBox(page).fill(quoted(name));
  await rowNamed(page, name).waitFor();
  await page.route('**/querier.v1.QuerierService/**', (r) => r.abort());
  await page.getByRole('button', { name: 'Refresh now' }).click();
  await page.getByRole('alert').getByText('doesn’t answer').waitFor();
  await rowNamed(page, name).waitFor();
  await page.unroute('**/querier.v1.QuerierService/**');
  await page.getByRole('alert').waitFor({ state: 'detached', timeout: 10_000 });
}
