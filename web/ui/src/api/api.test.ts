import { afterEach, describe, expect, it, vi } from 'vitest';
import { readTargets } from './agent';
import { ApiError, getJSON, query } from './client';
import { fileName, mergeProfileRequest } from './pprof';
import { profileTypes, selectSeries } from './querier';

function answer(body: string, status = 200) {
  return vi.fn(() => Promise.resolve(new Response(body, { status })));
}

afterEach(() => vi.unstubAllGlobals());

describe('mergeProfileRequest', () => {
  it('is the protobuf that the service reads', () => {
    // protoc: profile_typeID: "a:b", label_selector: "{}", start: 300, end: 1700000000000
    expect([...mergeProfileRequest('a:b', '{}', { start: 300, end: 1_700_000_000_000 })]).toEqual([
      0x0a, 3, 0x61, 0x3a, 0x62, 0x12, 2, 0x7b, 0x7d, 0x18, 0xac, 0x02, 0x20, 0x80, 0xd0, 0x95, 0xff, 0xbc, 0x31,
    ]);
  });

  it('counts the length in bytes', () => {
    const text = 'ü'.repeat(100);
    expect([...mergeProfileRequest(text, '', { start: 0, end: 0 })].slice(0, 3)).toEqual([0x0a, 0xc8, 0x01]);
  });
});

describe('fileName', () => {
  it.each([
    ['shop', 'process_cpu:cpu', 'shop-process_cpu-2023-11-14T221320.pb.gz'],
    ['', '', 'all-profile-2023-11-14T221320.pb.gz'],
    ['../../etc/passwd', 'x', 'etc_passwd-x-2023-11-14T221320.pb.gz'],
  ])('of %j is safe', (service, type, name) => expect(fileName(service, type, 1_700_000_000_000)).toBe(name));
});

describe('calls', () => {
  it('send what Connect asks for', async () => {
    const fetch = answer('{"names":["a"]}');
    vi.stubGlobal('fetch', fetch);
    await query('LabelNames', { matchers: [] });
    const [url, init] = fetch.mock.calls[0] as unknown as [URL, RequestInit];
    expect(url.pathname).toBe('/querier.v1.QuerierService/LabelNames');
    expect(init.method).toBe('POST');
    expect(init.headers).toMatchObject({ 'content-type': 'application/json' });
  });

  it.each([
    [501, '{"code":"unimplemented","message":"the store is off"}', 'missing', 'the store is off'],
    [400, '{"code":"invalid_argument","message":"bad regexp"}', 'refused', 'bad regexp'],
    [500, '<html>oops</html>', 'refused', 'HTTP 500'],
    [500, 'plain words', 'refused', 'plain words'],
    [503, '', 'unreachable', 'HTTP 503'],
    [401, '', 'refused', 'you are not signed in, or may not see this'],
  ])('tell why %i failed', async (status, body, kind, message) => {
    vi.stubGlobal('fetch', answer(body, status));
    const err = await getJSON('api/v1/status').catch((e: unknown) => e);
    expect(err).toBeInstanceOf(ApiError);
    expect(err).toMatchObject({ kind, message });
  });

  it('tell that nobody answers', async () => {
    vi.stubGlobal('fetch', vi.fn(() => Promise.reject(new TypeError('Failed to fetch'))));
    await expect(getJSON('x')).rejects.toMatchObject({ kind: 'unreachable' });
  });

  it('refuse an answer that is no JSON', async () => {
    vi.stubGlobal('fetch', answer('<html>'));
    await expect(getJSON('x')).rejects.toMatchObject({ kind: 'refused' });
  });

  it('read odd answers without failing', async () => {
    const w = { start: 0, end: 1 };
    for (const body of ['{}', 'null', '[]', '{"profileTypes":null}', '{"profileTypes":[null,{"ID":5}]}']) {
      vi.stubGlobal('fetch', answer(body));
      expect(await profileTypes(w)).toEqual([]);
    }
    vi.stubGlobal('fetch', answer('{"series":[null,{"labels":[null,{"name":"__proto__","value":"x"}],"points":[null,{"timestamp":"5","value":"7"},{"timestamp":"x"}]}]}'));
    const series = await selectSeries('t', '{}', w, [], 15);
    expect(series[0].points).toEqual([]);
    expect(series[1].points).toEqual([{ ms: 5, value: 7 }]);
    expect(series[1].labels['__proto__']).toBe('x');
  });
});

describe('readTargets', () => {
  it('reads what the agent sends', () => {
    const t = readTargets({
      processes: [{ pid: 7, start_time: '2026-12-01T10:00:00Z', comm: 'c', exe: '/e', service_name: 's', job: 'j', labels: { a: 'b' }, why: 'w', samples: 3, dropped: { process_gone: 2, none: 0 }, stacks: { whole: 2, no_row: 1 } }],
      unmatched: [{ job: 'j', labels: {}, why: 'w' }],
    });
    expect(t.processes[0]).toMatchObject({ pid: 7, started: Date.UTC(2026, 11, 1, 10), service: 's', dropped: { process_gone: 2 }, stacks: { whole: 2, no_row: 1 } });
    expect(t.processes[0].dropped).not.toHaveProperty('none');
    expect(t.unmatched).toHaveLength(1);
  });

  it.each([null, 5, 'x', [], {}, { processes: 'x' }])('reads %j as an empty list', (answer) => {
    expect(readTargets(answer)).toEqual({ processes: [], unmatched: [] });
  });

  it('reads broken rows', () => {
    const [row] = readTargets({ processes: [null] }).processes;
    expect(row).toMatchObject({ pid: 0, comm: '', service: '', labels: {} });
    expect(row.started).toBeNaN();
  });
});
