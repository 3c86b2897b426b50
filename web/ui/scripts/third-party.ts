// Writes THIRD_PARTY.md: every package that has a module in the bundle, with its
// version, licence and the licence's text. The list is taken from the bundle
// itself, so that it can't be out of step.

import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve, sep } from 'node:path';
import type { Plugin } from 'vite';

interface Package {
  name: string;
  version: string;
  licence: string;
  text: string;
}

/** The folder of the package that a module belongs to, "" if it is ours. */
function packageDir(module: string): string {
  const path = module.replace(/^\0/, '').replace(/\?.*$/, '');
  if (!path.includes(`${sep}node_modules${sep}`)) return '';
  let dir = dirname(path);
  while (dir !== dirname(dir)) {
    const manifest = join(dir, 'package.json');
    // Folders inside a package may have a package.json of their own that only sets the module type.
    if (existsSync(manifest) && (JSON.parse(readFileSync(manifest, 'utf8')) as { version?: string }).version) return dir;
    dir = dirname(dir);
  }
  return '';
}

function read(dir: string): Package {
  const p = JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8')) as {
    name: string;
    version: string;
    license?: string;
  };
  const file = readdirSync(dir)
    .filter((f) => /^(licen[cs]e|copying)/i.test(f))
    .sort()[0];
  return {
    name: p.name,
    version: p.version,
    licence: p.license ?? 'unknown',
    text: file ? readFileSync(join(dir, file), 'utf8').replace(/\r\n/g, '\n').trim() : '',
  };
}

function document(packages: Package[]): string {
  const rows = packages.map((p) => `| ${p.name} | ${p.version} | ${p.licence} |`);
  const texts = packages
    .filter((p) => p.text !== '')
    .map((p) => `## ${p.name}\n\n\`\`\`\`text\n${p.text.replace(/[ \t]+$/gm, '')}\n\`\`\`\`\n`);
  return [
    '# Third-party code in the page',
    '',
    'Written by `npm run build` from the modules in the bundle; do not edit.',
    '',
    '| package | version | licence |',
    '|---|---|---|',
    ...rows,
    '',
    ...texts,
  ].join('\n');
}

/** The plugin that writes the file after each build. */
export function thirdParty(file: string): Plugin {
  const dirs = new Set<string>();
  let root = '';
  return {
    name: 'third-party',
    apply: 'build',
    configResolved(config) {
      root = config.root;
    },
    // Style sheets are in no chunk's list of modules.
    moduleParsed(info) {
      if (/\.css(\?|$)/.test(info.id)) dirs.add(packageDir(info.id));
    },
    generateBundle(_, bundle) {
      for (const chunk of Object.values(bundle)) {
        if (chunk.type === 'asset') {
          for (const name of chunk.originalFileNames) dirs.add(packageDir(resolve(root, name)));
          continue;
        }
        for (const [id, module] of Object.entries(chunk.modules)) {
          if (module.renderedLength > 0) dirs.add(packageDir(id));
        }
      }
      dirs.delete('');
      const packages = [...dirs].map(read).sort((a, b) => (a.name < b.name ? -1 : a.name > b.name ? 1 : 0));
      writeFileSync(file, document(packages));
    },
  };
}
