// Download of the profile that is shown, as a gzipped pprof file.
//
// The answer of SelectMergeProfile, in protobuf, is a google.v1.Profile, which is
// pprof's own message: its bytes are the file. So only the request has to be
// encoded here (https://protobuf.dev/programming-guides/encoding/), five fields
// of querier.v1.SelectMergeProfileRequest.

import type { Window } from './querier';
import { queryProto } from './client';

function varint(n: number): number[] {
  const out: number[] = [];
  let v = BigInt(Math.max(0, Math.round(n)));
  do {
    const low = Number(v & 0x7fn);
    v >>= 7n;
    out.push(v > 0n ? low | 0x80 : low);
  } while (v > 0n);
  return out;
}

function text(field: number, s: string): number[] {
  const utf8 = new TextEncoder().encode(s);
  return [(field << 3) | 2, ...varint(utf8.length), ...utf8];
}

/** querier.v1.SelectMergeProfileRequest: profile_typeID = 1, label_selector = 2, start = 3, end = 4 (ms). */
export function mergeProfileRequest(type: string, selector: string, w: Window): Uint8Array<ArrayBuffer> {
  return new Uint8Array([
    ...text(1, type),
    ...text(2, selector),
    (3 << 3) | 0,
    ...varint(Math.floor(w.start)),
    (4 << 3) | 0,
    ...varint(Math.ceil(w.end)),
  ]);
}

/** A file name that no file system minds. */
export function fileName(service: string, type: string, end: number): string {
  const safe = (s: string) => s.replace(/[^A-Za-z0-9._-]+/g, '_').replace(/^[._]+/, '').slice(0, 80);
  const stamp = new Date(end).toISOString().slice(0, 19).replace(/:/g, '');
  return [safe(service) || 'all', safe(type.split(':')[0]) || 'profile', stamp].join('-') + '.pb.gz';
}

/** Fetches the merged profile and hands it to the browser as a file. */
export async function downloadPprof(type: string, selector: string, w: Window, name: string): Promise<void> {
  const profile = await queryProto('SelectMergeProfile', mergeProfileRequest(type, selector, w));
  const packed = new Blob([profile]).stream().pipeThrough(new CompressionStream('gzip'));
  const blob = await new Response(packed, { headers: { 'content-type': 'application/octet-stream' } }).blob();
  const url = URL.createObjectURL(blob);
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
