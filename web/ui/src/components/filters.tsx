import { useEffect, useState } from 'react';
import { useQuery } from '@tanstack/react-query';
import { ListFilter, X } from 'lucide-react';
import { serverNow } from '../api/client';
import { labelNames, labelValues } from '../api/querier';
import { OP_WORDS, OPS, SERVICE, selector, validName, type Filter, type Op } from '../lib/selector';
import { bounds, type Range } from '../lib/timerange';
import { Combobox } from './combobox';
import { Popover } from './popover';

interface Props {
  service: string;
  filters: Filter[];
  /** Says whether a filter narrows what is shown. */
  applies: (filter: Filter) => boolean;
  range: Range;
  onChange: (filters: Filter[]) => void;
}

/** The label filters: a chip each, and the button that adds one. */
export function Filters({ service, filters, applies, range, onChange }: Props) {
  return (
    <div className="filters" role="group" aria-label="Label filters">
      {filters.map((f, i) => (
        <div className={applies(f) ? 'chip' : 'chip unused'} key={`${i} ${f.name}`} title={applies(f) ? undefined : `Samples of this profile type have no label “${f.name}”: it filters nothing here`}>
          <Popover
            className="chip-text"
            label={`Change the filter: ${f.name} ${OP_WORDS[f.op]} ${f.value}`}
            button={
              <>
                <b>{f.name}</b>
                <i>{f.op}</i>
                <span>{f.value === '' ? '""' : f.value}</span>
              </>
            }
          >
            {(close) => (
              <Editor
                initial={f}
                service={service}
                others={filters.filter((_, k) => k !== i)}
                range={range}
                onDone={(changed) => {
                  onChange(filters.map((old, k) => (k === i ? changed : old)));
                  close();
                }}
              />
            )}
          </Popover>
          <button
            type="button"
            className="ghost"
            aria-label={`Remove the filter: ${f.name} ${OP_WORDS[f.op]} ${f.value}`}
            onClick={() => onChange(filters.filter((_, k) => k !== i))}
          >
            <X />
          </button>
        </div>
      ))}
      <Popover
        label="Add a label filter"
        className="button quiet"
        button={
          <>
            <ListFilter />
            <span>Filter</span>
          </>
        }
      >
        {(close) => (
          <Editor
            service={service}
            others={filters}
            range={range}
            onDone={(added) => {
              onChange([...filters, added]);
              close();
            }}
          />
        )}
      </Popover>
    </div>
  );
}

interface EditorProps {
  initial?: Filter;
  service: string;
  others: Filter[];
  range: Range;
  onDone: (filter: Filter) => void;
}

function Editor({ initial, service, others, range, onDone }: EditorProps) {
  const [name, setName] = useState(initial?.name ?? '');
  const [op, setOp] = useState<Op>(initial?.op ?? '=');
  const [value, setValue] = useState(initial?.value ?? '');
  const matchers = [selector(service, others)];

  const names = useQuery({
    queryKey: ['labelNames', matchers, range],
    queryFn: ({ signal }) => labelNames(matchers, bounds(range, serverNow()), signal),
  });
  const values = useQuery({
    queryKey: ['labelValues', name, matchers, range],
    queryFn: ({ signal }) => labelValues(name, matchers, bounds(range, serverNow()), signal),
    enabled: validName(name),
  });
  // Labels that only describe the profile itself, and what is chosen elsewhere, help nobody here.
  const choices = (names.data ?? []).filter((n) => !n.startsWith('__') && (n !== SERVICE || service === ''));

  useEffect(() => {
    if (name !== (initial?.name ?? '')) setValue('');
  }, [name, initial]);

  const ok = validName(name);
  return (
    <form
      className="filter-editor"
      onSubmit={(e) => {
        e.preventDefault();
        if (ok) onDone({ name, op, value });
      }}
    >
      <Combobox
        label="Label"
        placeholder="label"
        value={name}
        options={choices.map((v) => ({ value: v }))}
        onChange={setName}
        loading={names.isLoading}
        free
      />
      <select aria-label="Comparison" value={op} onChange={(e) => setOp(e.target.value as Op)}>
        {OPS.map((o) => (
          <option key={o} value={o}>
            {o} {OP_WORDS[o]}
          </option>
        ))}
      </select>
      <Combobox
        label="Value"
        placeholder={op === '=~' || op === '!~' ? 'regular expression' : 'value'}
        value={value}
        options={(values.data ?? []).map((v) => ({ value: v }))}
        onChange={setValue}
        loading={values.isLoading}
        free
      />
      <button type="submit" className="button primary" disabled={!ok}>
        {initial ? 'Change' : 'Add filter'}
      </button>
      {name !== '' && !ok && <p className="field-error">A label’s name has letters, digits and “_”.</p>}
      {names.isError && <p className="field-error">No suggestions: {names.error.message}.</p>}
    </form>
  );
}
