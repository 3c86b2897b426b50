// The page, tested in headless Chromium against a running agent.
//
//   node test/page/run.mjs --url http://127.0.0.1:4041/ --function main.burn --pid 4711
//        [--cause WAIT] [--service S] [--wait SECONDS] [--screenshots DIR] [--chromium PATH]
//   node test/page/run.mjs --mock [--screenshots DIR]
//
// --function  a function that uses much CPU and that only this process has
// --pid       its process; its service is what the agent says, or must be --service
// --cause     what its threads wait for, beside others and beside being idle, such
//             as sleep; without it, off-CPU profiles are not looked for
// --wait      how long the first picture may take (default 30)
// --mock      runs against the stand-in of test/page/mock: with 5,000 processes,
//             a fresh agent, one without off-CPU profiles, one without store, and
//             broken answers

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { release } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { launch, open } from './browser.mjs';
import * as check from './checks.mjs';
import { startMock } from './mock/server.mjs';

const { values: flags } = parseArgs({
  options: {
    url: { type: 'string' },
    function: { type: 'string' },
    pid: { type: 'string' },
    cause: { type: 'string' },
    service: { type: 'string' },
    wait: { type: 'string', default: '30' },
    screenshots: { type: 'string' },
    chromium: { type: 'string' },
    mock: { type: 'boolean', default: false },
  },
});

if (!flags.mock && !(flags.url && flags.function && flags.pid)) {
  console.error('page test: give --url, --function and --pid, or --mock; see the head of test/page/run.mjs');
  process.exit(2);
}

const browser = await launch(flags.chromium);
let failed = 0;

async function step(text, run) {
  const start = Date.now();
  try {
    const note = await run();
    console.log(`ok    ${text}${note ? ` (${note})` : ''}  ${Date.now() - start} ms`);
  } catch (err) {
    failed++;
    console.log(`FAIL  ${text}\n      ${String(err?.message ?? err).replace(/\n/g, '\n      ')}`);
    throw err;
  }
}

async function shot(page, name) {
  if (!flags.screenshots) return;
  mkdirSync(flags.screenshots, { recursive: true });
  await page.screenshot({ path: join(flags.screenshots, `${name}.png`) });
}

/** The service that the agent gives the process. */
async function serviceOf(url, pid) {
  const answer = await fetch(new URL('api/v1/targets', url));
  assert.equal(answer.status, 200, '/api/v1/targets');
  const process = (await answer.json()).processes.find((p) => String(p.pid) === String(pid));
  assert.ok(process, `the agent lists process ${pid}`);
  assert.notEqual(process.service_name, '', `process ${pid} is profiled: ${process.why}`);
  return process.service_name;
}

async function suite({ url, name, pid, service, cause, wait, kernel, pprofNames }) {
  const { page, context, faults } = await open(browser, url);
  try {
    await step(`opens and shows ${name}`, () => check.showsFunction(page, name, wait));
    await shot(page, 'search');
    await step('filters by label', () => check.filters(page, name, service));
    await step('suggests labels and values', () => check.suggests(page, 'service_name', service));
    await step('chooses a service', () => check.choosesService(page, service));
    await step('lights up what is searched for', () => check.highlights(page, name));
    await shot(page, 'service');
    await step('shows callers and callees', () => check.showsCallers(page, name));
    await step('walks by keyboard', () => check.walksByKeyboard(page));
    await step('sorts the table', () => check.sorts(page));
    await step('downloads pprof', async () => `${await check.downloads(page, pprofNames ? name : undefined)} bytes`);
    await step('keeps the last picture when the server is silent', () => check.survivesSilence(page, name));
    if (cause) {
      await step(`breaks off-CPU time down, by ${cause} and others`, () => check.breaksDownWaits(page, url, service, cause));
      await step('leaves out idle threads', () => check.leavesOutIdle(page, url, service));
      await step('shows CPU and off-CPU side by side', () => check.showsSideBySide(page, url, service));
    }
    await page.goto(url);
    await page.locator('.chart-canvas canvas').waitFor();
    await step('zooms into the chart', () => check.zooms(page));
    await step('switches the theme and remembers it', () => check.switchesTheme(page));
    await step('bounds the list of processes', async () => `${await check.boundsTargets(page, url)} rows`);
    await shot(page, 'targets');
    await step(`lists process ${pid} as ${service}`, () => check.listsTarget(page, url, pid, service));
    await step('shows the status', () => check.showsStatus(page, url, kernel));
    await shot(page, 'status');
    await step('has no error and asks no other server', () => assert.deepEqual(faults, []));
  } catch (err) {
    await shot(page, 'failed').catch(() => {});
    throw err;
  } finally {
    await context.close();
  }
  if (flags.screenshots) await gallery(url, service, cause !== undefined);
}

/** Pictures of the main views, light, dark and narrow. */
async function gallery(url, service, off) {
  const views = [
    ['light', url, {}],
    ['dark', check.at(url, { service }), { scheme: 'dark' }],
    ['targets-dark', check.at(url, { page: 'targets' }), { scheme: 'dark' }],
    ['narrow', url, { width: 420, height: 900 }],
  ];
  if (off) {
    const type = 'off_cpu:off_cpu:nanoseconds::';
    views.push(
      ['off-cpu', check.at(url, { service, type }), {}],
      ['side-by-side', check.at(url, { service, side: 'on' }), {}],
      ['side-by-side-dark', check.at(url, { service, side: 'on', filter: 'idle!=true' }), { scheme: 'dark' }],
      ['side-by-side-narrow', check.at(url, { service, side: 'on' }), { width: 420, height: 900 }],
    );
  }
  for (const [name, address, options] of views) {
    const { page, context } = await open(browser, address, options);
    await page.waitForLoadState('networkidle').catch(() => {});
    await page.waitForTimeout(600);
    await shot(page, name);
    await context.close();
  }
}

async function mockSuite() {
  const mock = await startMock({ processes: 5_000 });
  await suite({ url: mock.url, name: 'main.burnTax', pid: '400', service: 'shop-frontend', cause: 'lock', wait: 5_000 });
  await mock.close();

  await step('shows a fresh agent’s first picture by itself', async () => {
    const fresh = await startMock({ mode: 'fresh' });
    const { page, context } = await open(browser, fresh.url);
    await page.getByText('Waiting for the first profile').waitFor();
    await check.showsFunction(page, 'main.burnTax', 8_000);
    const late = Date.now() - fresh.state.started - 5_000;
    assert.ok(late < 2_500, `the picture came ${late} ms after there was one`);
    await context.close();
    await fresh.close();
  });
  await step('says how to get off-CPU profiles', async () => {
    const cpu = await startMock({ mode: 'cpu' });
    const { page, context, faults } = await open(browser, cpu.url);
    await check.tellsHowToEnableOffCPU(page);
    await shot(page, 'off-cpu-missing');
    assert.deepEqual(faults, []);
    await context.close();
    await cpu.close();
  });
  await step('says that the store is off', async () => {
    const off = await startMock({ mode: 'off' });
    const { page, context, faults } = await open(browser, off.url);
    await page.getByText('This agent keeps no profiles itself').waitFor();
    assert.deepEqual(faults, []);
    await context.close();
    await off.close();
  });
  await step('draws what is sound of a broken answer', async () => {
    const hostile = await startMock({ mode: 'hostile' });
    const { page, context, faults } = await open(browser, hostile.url);
    await page.getByText('blocks of the answer made no sense').waitFor();
    await check.showsFunction(page, '<img src=x onerror=alert(1)>', 5_000);
    assert.equal(await page.locator('#root img[onerror]').count(), 0);
    assert.deepEqual(faults, []);
    await context.close();
    await hostile.close();
  });
}

try {
  if (flags.mock) {
    await mockSuite();
  } else {
    const service = await serviceOf(flags.url, flags.pid);
    if (flags.service) assert.equal(service, flags.service, 'the service of the process');
    await suite({ url: flags.url, name: flags.function, pid: flags.pid, service, cause: flags.cause, wait: Number(flags.wait) * 1000, kernel: release(), pprofNames: true });
  }
} catch (err) {
  if (failed === 0) console.error(err);
  failed++;
} finally {
  await browser.close();
}
console.log(failed === 0 ? 'page test passed' : 'page test FAILED');
process.exit(failed === 0 ? 0 : 1);
