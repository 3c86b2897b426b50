import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { thirdParty } from './scripts/third-party.ts';

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const flamegraph = (module: string) => here(`node_modules/@grafana/flamegraph/dist/esm/FlameGraph/${module}.mjs`);

export default defineConfig({
  // The page may be served under any path: all addresses are relative.
  base: './',
  plugins: [thirdParty(here('THIRD_PARTY.md'))],
  resolve: {
    alias: [
      // See src/grafana/README.md.
      { find: '@grafana/flamegraph/canvas', replacement: flamegraph('FlameGraphCanvas') },
      { find: '@grafana/flamegraph/data', replacement: flamegraph('dataTransform') },
      { find: '@grafana/flamegraph/tree', replacement: flamegraph('treeTransforms') },
      { find: '@grafana/flamegraph/colors', replacement: flamegraph('colors') },
      { find: /^\.\/FlameGraphTooltip\.mjs$/, replacement: here('src/grafana/tooltip.tsx') },
      { find: /^\.\/FlameGraphContextMenu\.mjs$/, replacement: here('src/grafana/menu.tsx') },
      { find: /^\.\/colors\.mjs$/, replacement: here('src/grafana/colors.ts') },
      { find: '@grafana/ui', replacement: here('src/grafana/ui.tsx') },
      { find: '@grafana/data', replacement: here('src/grafana/data.ts') },
      { find: 'lodash', replacement: here('src/grafana/lodash.ts') },
      { find: 'react-use', replacement: here('src/grafana/react-use.ts') },
    ],
  },
  build: {
    target: ['chrome111', 'firefox114', 'safari16.4'],
    sourcemap: false,
    // An inlined file would be a data: address, which the page's policy allows for images only.
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 1_000,
    rolldownOptions: {
      onLog(level, log, log2) {
        // "use client" means something to server-side rendering only.
        if (log.code !== 'MODULE_LEVEL_DIRECTIVE') log2(level, log);
      },
    },
  },
  server: { proxy: devProxy() },
  test: {
    environment: 'jsdom',
    include: ['src/**/*.test.{ts,tsx}'],
    // The flame graph's modules come through the aliases only if they are transformed.
    server: { deps: { inline: [/@grafana\/flamegraph/] } },
  },
});

/** `npm run dev` asks the agent, or whatever SPANFLAME_URL names, for data. */
function devProxy() {
  const target = process.env.SPANFLAME_URL ?? 'http://127.0.0.1:4041';
  return Object.fromEntries(['/querier.v1.', '/api/', '/-/'].map((prefix) => [prefix, { target }]));
}
