// The search of function names: plain words find any name that contains them,
// "…" finds exactly that name, /…/ is a regular expression.

export interface Matcher {
  test: (name: string) => boolean;
  /** What is wrong with the text, if anything. */
  error?: string;
}

/** The matcher of a search text; undefined for none. */
export function parseSearch(text: string): Matcher | undefined {
  if (text.trim() === '') return undefined;
  if (text.length > 2 && text.startsWith('"') && text.endsWith('"')) {
    const exact = text.slice(1, -1);
    return { test: (name) => name === exact };
  }
  if (text.length > 2 && text.startsWith('/') && text.endsWith('/')) {
    try {
      const re = new RegExp(text.slice(1, -1), 'i');
      return { test: (name) => re.test(name) };
    } catch (err) {
      return { test: () => false, error: err instanceof Error ? err.message : String(err) };
    }
  }
  const words = text.trim().toLowerCase();
  return { test: (name) => name.toLowerCase().includes(words) };
}

/** The search text that finds exactly the name. */
export function exactSearch(name: string): string {
  return `"${name}"`;
}
