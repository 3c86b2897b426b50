// A stand-in for the agent, for work on the page without one: the page's files
// from web/ui/dist under the agent's own policy, and made-up answers.
//
//   node test/page/mock/server.mjs [--port 4041] [--mode MODE] [--processes N]
//
// Modes: data (default); fresh: nothing for the first 5 s; cpu: no off-CPU
// profiles; off: the store is off; hostile: broken levels and odd names.

import { createServer } from 'node:http';
import { readFileSync, existsSync } from 'node:fs';
import { extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { flamegraph, offCPU, onCPU, random, services } from './profile.mjs';

const POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:";
const DIST = fileURLToPath(new URL('../../../web/ui/dist', import.meta.url));
const TYPES = { '.js': 'text/javascript', '.css': 'text/css', '.html': 'text/html', '.svg': 'image/svg+xml', '.woff2': 'font/woff2' };
const CPU = 'process_cpu:cpu:nanoseconds:cpu:nanoseconds';
const OFF_CPU = 'off_cpu:off_cpu:nanoseconds::';
const REASONS = [
  'matched: process discovery, job host',
  'The process is a kernel thread: its stacks are in the kernel’s own target',
  'relabel_configs of job host dropped it',
];

const hostileFlame = {
  names: ['total', '__proto__', 'constructor', '<img src=x onerror=alert(1)>', 'x'.repeat(5000), '', 'ünï ☃ 𝕏'],
  levels: [
    { values: ['0', '1000', '0', '0'] },
    { values: ['0', '400', '100', '1', '0', '300', '50', '3', '0', '200', '20', '99', '500', '100', '5', '2'] },
    { values: ['0', '300', '300', '4', '100', '900', '5', '5', '-3', '10', '1', '1'] },
    { values: ['0', 'NaN', '1', '1'] },
    null,
    { values: 'no' },
  ],
  total: '1000',
};

/** Starts the server; resolves to it with its address. */
export async function startMock({ port = 0, mode = 'data', processes = 320, started = Date.now() } = {}) {
  const server = createServer((request, response) => {
    const chunks = [];
    request.on('data', (c) => chunks.push(c));
    request.on('end', () => {
      try {
        answer(request, Buffer.concat(chunks), response);
      } catch (err) {
        send(response, 500, { code: 'internal', message: String(err) });
      }
    });
  });
  const state = { mode, processes, started, requests: [] };

  function send(response, code, body, type = 'application/json') {
    response.writeHead(code, {
      'content-type': type,
      'content-security-policy': POLICY,
      'cache-control': 'no-cache',
      date: new Date().toUTCString(),
    });
    response.end(typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body));
  }

  function answer(request, body, response) {
    const path = new URL(request.url, 'http://mock').pathname;
    state.requests.push(path);
    if (path.startsWith('/querier.v1.QuerierService/')) return query(path.split('/')[2], body, request, response);
    if (path === '/api/v1/targets') return send(response, 200, targets());
    if (path === '/api/v1/status') return send(response, 200, status());
    const file = path === '/' ? '/index.html' : normalize(path);
    const full = join(DIST, file);
    if (!existsSync(full)) return send(response, 404, 'not found', 'text/plain');
    send(response, 200, readFileSync(full), TYPES[extname(full)] ?? 'application/octet-stream');
  }

  const fresh = () => state.mode === 'fresh' && Date.now() - state.started < 5000;

  function query(method, body, request, response) {
    if (state.mode === 'off') return send(response, 501, { code: 'unimplemented', message: 'the store is off' });
    if (method === 'SelectMergeProfile') return send(response, 200, Buffer.from([0x0a, 0x04, 0x08, 0x01, 0x10, 0x02]), 'application/proto');
    const q = JSON.parse(body.toString() || '{}');
    const from = Number(q.start);
    const to = Number(q.end);
    const waits = q.profileTypeID === OFF_CPU;
    const types = [CPU, ...(state.mode === 'cpu' ? [] : [OFF_CPU])];
    const all = state.mode === 'cpu' ? onCPU : [...onCPU, ...offCPU];
    const of = fresh() ? [] : q.profileTypeID ? (waits ? all.filter((s) => !onCPU.includes(s)) : onCPU) : all;
    const series = select(of, q.labelSelector ?? q.matchers?.[0] ?? '{}');
    switch (method) {
      case 'ProfileTypes':
        return send(response, 200, fresh() ? {} : { profileTypes: types.map((ID) => ({ ID, name: ID.split(':')[0], sampleType: ID.split(':')[1], sampleUnit: 'nanoseconds' })) });
      case 'LabelNames':
        return send(response, 200, { names: [...new Set(['__profile_type__', ...series.flatMap((s) => Object.keys(s.labels))])].sort() });
      case 'LabelValues':
        return send(response, 200, { names: [...new Set(series.map((s) => s.labels[q.name]).filter(Boolean))].sort() });
      case 'SelectMergeStacktraces':
        return send(response, 200, state.mode === 'hostile' ? { flamegraph: hostileFlame } : series.length ? { flamegraph: flamegraph(series, (to - from) / 1000) } : { flamegraph: {} });
      case 'SelectSeries':
        return send(response, 200, { series: sums(series, q.groupBy ?? [], from, to, q.step * 1000) });
      default:
        return send(response, 404, { code: 'unimplemented', message: method });
    }
  }

  /** The sums of each group and step; of a step that is the whole range, just the flame graph's total. */
  function sums(series, groupBy, from, to, step) {
    const groups = new Map();
    for (const { labels, atOnce } of series) {
      const by = groupBy.filter((n) => labels[n]).map((name) => ({ name, value: labels[name] }));
      const key = JSON.stringify(by);
      const group = groups.get(key) ?? { by, values: new Map() };
      groups.set(key, group);
      const n = labels.service_name;
      const noise = random([...n].reduce((a, c) => a + c.charCodeAt(0), 7));
      const add = (t, value) => group.values.set(t, (group.values.get(t) ?? 0) + value);
      if (step >= to - from) {
        add(from + step, atOnce * (to - from) * 1e6);
        continue;
      }
      for (let t = from; t <= to + step; t += step) {
        const wave = 1 + 0.35 * Math.sin(t / 90_000 + n.length) + 0.22 * (noise() - 0.5) + (n === 'shop-frontend' && t > to - 240_000 && t < to - 120_000 ? 0.8 : 0);
        add(t, atOnce * wave * step * 1e6);
      }
    }
    return [...groups.values()].map((g) => ({ labels: g.by, points: [...g.values].map(([t, value]) => ({ timestamp: String(t), value })) }));
  }

  function targets() {
    const rnd = random(3);
    const names = Object.keys(services);
    const list = [];
    for (let i = 0; i < state.processes; i++) {
      const none = i % 5 === 4;
      const service = names[i % names.length];
      list.push({
        pid: 400 + i * 7,
        start_time: new Date(Date.now() - rnd() * 5e8).toISOString(),
        comm: none ? 'kworker/0:1' : service.slice(0, 15),
        exe: none ? '' : `/usr/lib/${service}/bin/${service}`,
        service_name: none ? '' : service,
        job: none ? '' : 'host',
        labels: none ? {} : { service_name: service, ...services[service].labels },
        why: none ? REASONS[1 + (i % 2)] : REASONS[0],
        samples: none ? 0 : Math.floor(rnd() * 40000),
        dropped: i % 37 === 3 ? { process_gone: 12 } : {},
      });
    }
    return { processes: list, unmatched: [{ job: 'docker', labels: { __address__: '172.17.0.9:80', __meta_docker_container_name: '/old' }, why: 'no process of this host listens on 172.17.0.9:80' }] };
  }

  function status() {
    const taken = 482_113 + Math.floor((Date.now() - state.started) / 10);
    return {
      version: '0.1.0-mock',
      kernel: '6.12.9-amd64',
      start_time: new Date(state.started).toISOString(),
      session: { in: taken, out: taken - 3_420, dropped: { no_target: 2_100, process_gone: 17, stack_map_full: 3 } },
      sinks: { store: { in: 470_000, out: 469_100, dropped: {} }, 'http://pyroscope:4040': { in: 470_000, out: 461_000, dropped: { retries_exhausted: 900 } } },
      store: { enabled: true, path: '/var/lib/spanflame/store', used_bytes: 21_400_123, max_bytes: 1_073_741_824 },
      endpoints: [{ url: 'http://pyroscope:4040', state: 'ok', last_success: new Date().toISOString(), queue_bytes: 120_300 }],
    };
  }

  await new Promise((resolve) => server.listen(port, '127.0.0.1', resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, state, close: () => new Promise((r) => server.close(r)), server };
}

/** The series that a selector leaves; the four comparisons, as the agent knows them. */
export function select(series, selector) {
  const parts = [...selector.matchAll(/([a-zA-Z_]\w*)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"/g)];
  return series.filter(({ labels }) =>
    parts.every(([, name, op, quoted]) => {
      const want = quoted.replace(/\\(.)/g, '$1');
      const have = labels[name] ?? '';
      const hit = op.endsWith('~') ? new RegExp(`^(?:${want})$`).test(have) : have === want;
      return op.startsWith('!') ? !hit : hit;
    }),
  );
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { port: { type: 'string', default: '4041' }, mode: { type: 'string', default: 'data' }, processes: { type: 'string', default: '320' } } });
  const mock = await startMock({ port: Number(values.port), mode: values.mode, processes: Number(values.processes) });
  console.log(`mock agent (${values.mode}) at ${mock.url}`);
}
