// Label filters and the selector they make: {service_name="shop",pod=~"a.*"}.

export type Op = '=' | '!=' | '=~' | '!~';
export const OPS: readonly Op[] = ['=', '!=', '=~', '!~'];

export const OP_WORDS: Record<Op, string> = {
  '=': 'is',
  '!=': 'is not',
  '=~': 'matches',
  '!~': "doesn't match",
};

export interface Filter {
  name: string;
  op: Op;
  value: string;
}

export const SERVICE = 'service_name';

const NAME = /^[a-zA-Z_][a-zA-Z0-9_]*$/;

/** Says whether a label can have the name. */
export function validName(name: string): boolean {
  return NAME.test(name);
}

function quote(value: string): string {
  return '"' + value.replace(/\\/g, '\\\\').replace(/"/g, '\\"').replace(/\n/g, '\\n') + '"';
}

/** The selector of a service ("" is all) and filters. */
export function selector(service: string, filters: readonly Filter[]): string {
  const parts = filters.map((f) => f.name + f.op + quote(f.value));
  if (service !== '') parts.unshift(`${SERVICE}=${quote(service)}`);
  return `{${parts.join(',')}}`;
}

/** A filter as it stands in the address and on its chip: name=~value. */
export function filterText(f: Filter): string {
  return f.name + f.op + f.value;
}

/** Reads what filterText wrote; undefined if it is none. */
export function parseFilter(text: string): Filter | undefined {
  const m = /^([a-zA-Z_][a-zA-Z0-9_]*)(=~|!~|!=|=)([\s\S]*)$/.exec(text);
  if (!m || m[3].length > 2048) return undefined;
  return { name: m[1], op: m[2] as Op, value: m[3] };
}
