// A made-up profile of a few services, from stacks with weights. Deterministic,
// so that pictures of two runs can be compared.

/** A generator of numbers in [0, 1) that always gives the same ones (mulberry32). */
export function random(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = a;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const GO = ['runtime.goexit', 'net/http.(*Server).Serve.gowrap3', 'net/http.(*conn).serve', 'net/http.serverHandler.ServeHTTP', 'net/http.(*ServeMux).ServeHTTP', 'net/http.HandlerFunc.ServeHTTP'];
const SYS = ['entry_SYSCALL_64_after_hwframe', 'do_syscall_64'];
const NODE = ['_start', '__libc_start_main', 'main', 'node::Start(int, char**)', 'node::NodeMainInstance::Run()', 'node::SpinEventLoopInternal(node::Environment*)', 'uv_run'];

export const services = {
  'shop-frontend': {
    labels: { namespace: 'prod', version: '2026.11.3' },
    cores: 0.82,
    stacks: [
      [[...GO, 'main.(*Shop).Checkout', 'main.(*Shop).price', 'main.burnTax'], 30],
      [[...GO, 'main.(*Shop).Checkout', 'main.(*Shop).price', 'math/big.(*Int).Exp', 'math/big.nat.expNN', 'math/big.nat.montgomery', 'math/big.addMulVVW'], 21],
      [[...GO, 'main.(*Shop).Checkout', 'encoding/json.Marshal', 'encoding/json.(*encodeState).reflectValue', 'encoding/json.structEncoder.encode', 'encoding/json.stringEncoder'], 12],
      [[...GO, 'main.(*Shop).List', 'database/sql.(*DB).QueryContext', 'database/sql.(*DB).query', 'github.com/lib/pq.(*conn).Query', 'github.com/lib/pq.(*conn).recv1Buf', 'io.ReadFull', 'bufio.(*Reader).Read', 'net.(*conn).Read', 'internal/poll.(*FD).Read', 'syscall.Syscall', ...SYS, '__x64_sys_read', 'ksys_read', 'vfs_read', 'sock_read_iter', 'tcp_recvmsg', 'tcp_recvmsg_locked', 'skb_copy_datagram_iter'], 9],
      [[...GO, 'main.(*Shop).List', 'html/template.(*Template).Execute', 'text/template.(*Template).execute', 'text/template.(*state).walk', 'text/template.(*state).walk', 'text/template.(*state).walkRange', 'text/template.(*state).evalPipeline'], 11],
      [['runtime.mcall', 'runtime.park_m', 'runtime.schedule', 'runtime.findRunnable', 'runtime.netpoll', 'runtime.epollwait', ...SYS, '__x64_sys_epoll_pwait', 'do_epoll_wait', 'ep_poll'], 5],
      [['runtime.systemstack', 'runtime.gcBgMarkWorker.func2', 'runtime.gcDrain', 'runtime.scanobject', 'runtime.greyobject'], 8],
      [['runtime.systemstack', 'runtime.gcBgMarkWorker.func2', 'runtime.gcDrain', 'runtime.markroot', 'runtime.scanstack'], 3],
    ],
  },
  postgres: {
    labels: { namespace: 'prod', systemd_unit: 'postgresql@16-main.service' },
    cores: 0.41,
    stacks: [
      [['_start', '__libc_start_main', 'main', 'PostmasterMain', 'ServerLoop', 'BackendStartup', 'PostgresMain', 'exec_simple_query', 'PortalRun', 'PortalRunSelect', 'ExecutorRun', 'standard_ExecutorRun', 'ExecutePlan', 'ExecHashJoin', 'ExecScanHashBucket'], 22],
      [['_start', '__libc_start_main', 'main', 'PostmasterMain', 'ServerLoop', 'BackendStartup', 'PostgresMain', 'exec_simple_query', 'PortalRun', 'PortalRunSelect', 'ExecutorRun', 'standard_ExecutorRun', 'ExecutePlan', 'ExecSeqScan', 'heap_getnextslot', 'heapgettup_pagemode', 'HeapTupleSatisfiesVisibility'], 18],
      [['_start', '__libc_start_main', 'main', 'PostmasterMain', 'ServerLoop', 'BackendStartup', 'PostgresMain', 'exec_simple_query', 'pg_plan_queries', 'planner', 'standard_planner', 'subquery_planner', 'grouping_planner', 'query_planner', 'make_one_rel', 'standard_join_search'], 7],
      [['_start', '__libc_start_main', 'main', 'PostmasterMain', 'StartBackgroundWorker', 'WalWriterMain', 'XLogBackgroundFlush', 'XLogWrite', 'pg_pwrite', ...SYS, '__x64_sys_pwrite64', 'ksys_pwrite64', 'vfs_write', 'ext4_file_write_iter', 'ext4_buffered_write_iter', 'generic_perform_write', 'copy_page_from_iter_atomic'], 9],
    ],
  },
  'image-resizer': {
    labels: { namespace: 'prod', container: 'resizer' },
    cores: 0.33,
    stacks: [
      [['_start', '__libc_start_main', 'main', 'std::rt::lang_start_internal', 'resizer::main', 'rayon_core::registry::ThreadBuilder::run', 'rayon_core::job::StackJob<L,F,R>::execute', 'image::imageops::sample::resize', 'image::imageops::sample::horizontal_sample'], 25],
      [['_start', '__libc_start_main', 'main', 'std::rt::lang_start_internal', 'resizer::main', 'rayon_core::registry::ThreadBuilder::run', 'rayon_core::job::StackJob<L,F,R>::execute', 'image::imageops::sample::resize', 'image::imageops::sample::vertical_sample'], 19],
      [['_start', '__libc_start_main', 'main', 'std::rt::lang_start_internal', 'resizer::main', 'jpeg_decoder::decoder::Decoder<R>::decode', 'jpeg_decoder::idct::dequantize_and_idct_block_8x8'], 14],
    ],
  },
  'api-gateway': {
    labels: { namespace: 'prod', version: '4.2.0' },
    cores: 0.21,
    stacks: [
      [[...NODE, 'uv__io_poll', 'uv__stream_io', 'node::LibuvStreamWrap::OnUvRead', 'Builtins_JSEntryTrampoline', 'onread node:internal/stream_base_commons', 'parserOnHeadersComplete node:_http_common', 'handle /app/router.js', 'next /app/router.js', 'authenticate /app/auth.js', 'verify /app/node_modules/jsonwebtoken/verify.js'], 16],
      [[...NODE, 'uv__io_poll', 'uv__stream_io', 'node::LibuvStreamWrap::OnUvRead', 'Builtins_JSEntryTrampoline', 'onread node:internal/stream_base_commons', 'parserOnHeadersComplete node:_http_common', 'handle /app/router.js', 'next /app/router.js', 'proxy /app/proxy.js', 'Builtins_JsonStringify'], 10],
      [['_start', '__libc_start_main', 'main', 'node::Start(int, char**)', 'v8::platform::WorkerThread::Run', 'v8::internal::ScavengerCollector::JobTask::Run(v8::JobDelegate*)', 'v8::internal::Scavenger::Process(v8::JobDelegate*)'], 6],
    ],
  },
  'nightly-report': {
    labels: { namespace: 'batch', user: 'cron' },
    cores: 0.12,
    stacks: [
      [['_start', '__libc_start_main', 'main', 'Py_BytesMain', 'Py_RunMain', '<module> report.py', 'main report.py', 'aggregate report.py', 'sum_rows report.py'], 20],
      [['_start', '__libc_start_main', 'main', 'Py_BytesMain', 'Py_RunMain', '<module> report.py', 'main report.py', 'render report.py', 'write csv.py'], 8],
    ],
  },
  kernel: { labels: {}, cores: 0.05, stacks: [[['ret_from_fork_asm', 'ret_from_fork', 'kthread', 'worker_thread', 'process_one_work', 'blk_mq_run_work_fn'], 4], [['ret_from_fork_asm', 'ret_from_fork', 'kthread', 'rcu_gp_kthread', 'rcu_gp_fqs_loop'], 2]] },
  sshd: { labels: { systemd_unit: 'ssh.service' }, cores: 0.01, stacks: [[['_start', '__libc_start_main', 'main', 'server_loop2', 'ppoll'], 1]] },
  chronyd: { labels: { systemd_unit: 'chrony.service' }, cores: 0.004, stacks: [[['_start', '__libc_start_main', 'main', 'SCH_MainLoop', 'clock_gettime', '[vdso]'], 1]] },
  'systemd-journald': { labels: { systemd_unit: 'systemd-journald.service' }, cores: 0.02, stacks: [[['_start', '__libc_start_main', 'main', 'sd_event_run', 'sd_event_dispatch', 'server_process_datagram', 'journal_file_append_entry', 'siphash24_compress'], 1]] },
};

// How the threads of each service wait: cause, idle, how many at once, and in which functions.
const waits = [
  ['lock', 'true', 6, ['pthread_cond_wait', '__futex_wait', 'futex_do_wait']],
  ['poll', 'true', 3.2, ['epoll_wait', 'do_epoll_wait', 'ep_poll']],
  ['lock', '', 1.4, ['pthread_mutex_lock', '__futex_wait', 'futex_do_wait']],
  ['network', '', 0.8, ['recv', 'tcp_recvmsg', 'wait_woken']],
  ['sleep', '', 0.3, ['nanosleep', 'hrtimer_nanosleep', 'do_nanosleep']],
  ['disk', '', 0.17, ['fdatasync', 'ext4_sync_file', 'io_schedule']],
  ['run_queue', '', 0.09, ['schedule']],
  ['page_fault', '', 0.002, ['asm_exc_page_fault', 'folio_wait_bit_common']],
  ['', '', 0.04, ['[truncated: not_sampled]']],
];

const labelsOf = (service) => ({ service_name: service, ...services[service].labels });

/** The series of CPU time: labels, how much at once, and stacks with weights. */
export const onCPU = Object.entries(services).map(([service, { cores, stacks }]) => ({ labels: labelsOf(service), atOnce: cores, stacks }));

/** The series of time off the CPU: one for each service, cause and idleness. */
export const offCPU = Object.entries(services).flatMap(([service, { stacks }]) =>
  waits.map(([wait, idle, atOnce, frames]) => ({
    labels: { ...labelsOf(service), ...(wait && { wait }), ...(idle && { idle }) },
    atOnce,
    stacks: stacks.map(([stack, weight]) => [[...stack.slice(0, -1), ...frames, '__schedule'], weight]),
  })),
);

/** The profile of the series over some seconds as levels of quadruples, as the API sends them. */
export function flamegraph(series, seconds) {
  const root = { name: 'total', total: 0, self: 0, children: new Map() };
  for (const { atOnce, stacks } of series) {
    const weights = stacks.reduce((n, [, w]) => n + w, 0);
    for (const [stack, weight] of stacks) {
      const value = Math.round((atOnce * seconds * 1e9 * weight) / weights);
      root.total += value;
      let at = root;
      for (const name of stack) {
        if (!at.children.has(name)) at.children.set(name, { name, total: 0, self: 0, children: new Map() });
        at = at.children.get(name);
        at.total += value;
      }
      at.self += value;
    }
  }
  const index = new Map();
  const list = [];
  const levels = [];
  const walk = (node, depth, start) => {
    if (!index.has(node.name)) {
      index.set(node.name, list.length);
      list.push(node.name);
    }
    const level = (levels[depth] ??= { values: [], end: 0 });
    level.values.push(start - level.end, node.total, node.self, index.get(node.name));
    level.end = start + node.total;
    let x = start;
    for (const c of [...node.children.values()].sort((a, b) => (a.name < b.name ? -1 : 1))) {
      walk(c, depth + 1, x);
      x += c.total;
    }
  };
  if (root.total > 0) walk(root, 0, 0);
  return { names: list, levels: levels.map((l) => ({ values: l.values.map(String) })), total: String(root.total), maxSelf: '0' };
}
