// Small pieces that all pages use.

import type { ReactNode } from 'react';
import { AlertTriangle, Search, X } from 'lucide-react';

interface SegmentedProps<T extends string> {
  label: string;
  value: T;
  options: ReadonlyArray<{ value: T; text: string; icon?: ReactNode; title?: string }>;
  onChange: (value: T) => void;
}

/** A few choices of which one holds. */
export function Segmented<T extends string>({ label, value, options, onChange }: SegmentedProps<T>) {
  return (
    <div className="segmented" role="group" aria-label={label}>
      {options.map((o) => (
        <button key={o.value} type="button" aria-pressed={o.value === value} onClick={() => onChange(o.value)} title={o.title ?? o.text}>
          {o.icon}
          <span>{o.text}</span>
        </button>
      ))}
    </div>
  );
}

interface SearchBoxProps {
  label: string;
  placeholder: string;
  value: string;
  onChange: (value: string) => void;
  error?: string;
}

export function SearchBox({ label, placeholder, value, onChange, error }: SearchBoxProps) {
  return (
    <div className={`field search ${error ? 'invalid' : ''}`}>
      <Search />
      <input
        type="text"
        aria-label={label}
        aria-invalid={error ? true : undefined}
        placeholder={placeholder}
        title={error ?? 'Words, "an exact name" or /a regular expression/'}
        spellCheck={false}
        autoComplete="off"
        value={value}
        onChange={(e) => onChange(e.target.value)}
        onKeyDown={(e) => {
          if (e.key === 'Escape' && value !== '') {
            e.preventDefault();
            onChange('');
          }
        }}
      />
      {value !== '' && (
        <button type="button" className="ghost" aria-label="Clear the search" onClick={() => onChange('')}>
          <X />
        </button>
      )}
    </div>
  );
}

/** What stands in the place of data that is not there. */
export function Empty({ icon, title, children, actions }: { icon: ReactNode; title: string; children?: ReactNode; actions?: ReactNode }) {
  return (
    <div className="empty-state" role="status">
      <div className="empty-icon">{icon}</div>
      <h2>{title}</h2>
      {children && <div className="empty-text">{children}</div>}
      {actions && <div className="empty-actions">{actions}</div>}
    </div>
  );
}

/** A message above what is shown. */
export function Banner({ children, action }: { children: ReactNode; action?: ReactNode }) {
  return (
    <div className="banner" role="alert">
      <AlertTriangle />
      <div>{children}</div>
      {action}
    </div>
  );
}
