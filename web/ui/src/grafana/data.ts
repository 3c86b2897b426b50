// What @grafana/flamegraph needs of @grafana/data.

import { value } from '../lib/format';

export const FieldType = { string: 'string', number: 'number', enum: 'enum' } as const;

interface Field {
  config?: { unit?: string };
}

export interface DisplayValue {
  text: string;
  suffix: string;
  numeric: number;
}

/** Formats the values of a field, here in the words of the rest of the page. */
export function getDisplayProcessor({ field }: { field: Field }): (v: number) => DisplayValue {
  const unit = field.config?.unit ?? '';
  return (v) => ({ text: value(v, unit), suffix: '', numeric: v });
}

/** The default of a parameter that is always given. */
export function createTheme(): undefined {
  return undefined;
}
