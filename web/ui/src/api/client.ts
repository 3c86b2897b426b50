// Calls to the server that the page came from. The query API speaks Connect
// (https://connectrpc.com/docs/protocol, unary calls) with JSON, so a call is a
// plain POST.

/** Why a call failed, in words for the reader. */
export class ApiError extends Error {
  constructor(
    /** `unreachable`: no answer at all; `refused`: the server said no; `missing`: it has no such part. */
    readonly kind: 'unreachable' | 'refused' | 'missing',
    message: string,
  ) {
    super(message);
    this.name = 'ApiError';
  }
}

const TIMEOUT = 40_000;

// The server's clock minus ours in ms. "The last 15 minutes" means the server's.
let skew = 0;

/** The server's time in ms, as far as its answers tell. */
export function serverNow(): number {
  return Date.now() + skew;
}

function learnClock(response: Response): void {
  const date = Date.parse(response.headers.get('date') ?? '');
  if (!Number.isFinite(date)) return;
  // The header has whole seconds; less than a few of them is no skew.
  const d = date - Date.now();
  skew = Math.abs(d) > 5_000 ? d : 0;
}

async function call(path: string, init: RequestInit, signal?: AbortSignal): Promise<Response> {
  const timeout = AbortSignal.timeout(TIMEOUT);
  let response: Response;
  try {
    response = await fetch(new URL(path, document.baseURI), {
      ...init,
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    });
  } catch (err) {
    if (signal?.aborted) throw err;
    throw new ApiError('unreachable', timeout.aborted ? 'it took too long to answer' : 'it can’t be reached');
  }
  learnClock(response);
  if (response.ok) return response;
  throw new ApiError(kindOf(response.status), await reasonOf(response));
}

function kindOf(status: number): ApiError['kind'] {
  if (status === 502 || status === 503 || status === 504) return 'unreachable';
  return status === 404 || status === 501 ? 'missing' : 'refused';
}

async function reasonOf(response: Response): Promise<string> {
  const text = (await response.text().catch(() => '')).slice(0, 2_000);
  try {
    const body = JSON.parse(text) as { message?: unknown; error?: unknown };
    const message = body.message ?? body.error;
    if (typeof message === 'string' && message !== '') return message;
  } catch {
    // Not JSON: a proxy's page, or plain text.
  }
  if (response.status === 401 || response.status === 403) return 'you are not signed in, or may not see this';
  const plain = text.trim();
  return plain !== '' && !plain.startsWith('<') ? plain.slice(0, 300) : `HTTP ${response.status}`;
}

async function json(response: Response): Promise<unknown> {
  try {
    return await response.json();
  } catch {
    throw new ApiError('refused', 'the answer is no JSON: is there a proxy between?');
  }
}

/** GET of a JSON document. */
export async function getJSON(path: string, signal?: AbortSignal): Promise<unknown> {
  return json(await call(path, { headers: { accept: 'application/json' } }, signal));
}

/** A call of the query service, JSON in and out. */
export async function query(method: string, body: unknown, signal?: AbortSignal): Promise<unknown> {
  const response = await call(
    `querier.v1.QuerierService/${method}`,
    {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'connect-protocol-version': '1' },
      body: JSON.stringify(body),
    },
    signal,
  );
  return json(response);
}

/** A call of the query service with protobuf in and out. */
export async function queryProto(method: string, body: Uint8Array<ArrayBuffer>, signal?: AbortSignal): Promise<ArrayBuffer> {
  const response = await call(
    `querier.v1.QuerierService/${method}`,
    {
      method: 'POST',
      headers: { 'content-type': 'application/proto', 'connect-protocol-version': '1' },
      body,
    },
    signal,
  );
  return response.arrayBuffer();
}
