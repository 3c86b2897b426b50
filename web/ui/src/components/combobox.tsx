import { useMemo, useState } from 'react';
import { useCombobox } from 'downshift';
import { Check, ChevronsUpDown } from 'lucide-react';

export interface Option {
  value: string;
  /** What is shown; the value if missing. */
  text?: string;
  /** Shown at the right, muted. */
  note?: string;
}

interface Props {
  label: string;
  value: string;
  options: readonly Option[];
  onChange: (value: string) => void;
  /** Anything may be typed, not only an option. */
  free?: boolean;
  placeholder?: string;
  loading?: boolean;
  className?: string;
  autoFocus?: boolean;
  /** Shown before the value. */
  icon?: React.ReactNode;
}

const MAX_SHOWN = 200;

const textOf = (o: Option) => o.text ?? o.value;

/** A field with a list to choose from, filtered by what is typed. */
export function Combobox({ label, value, options, onChange, free, placeholder, loading, className = '', autoFocus, icon }: Props) {
  const current = options.find((o) => o.value === value);
  const shown = current ? textOf(current) : value;
  const [typed, setTyped] = useState<string>();

  const hits = useMemo(() => {
    const words = (typed ?? '').trim().toLowerCase();
    return words === '' ? options : options.filter((o) => textOf(o).toLowerCase().includes(words));
  }, [options, typed]);
  const items = hits.slice(0, MAX_SHOWN);

  const { isOpen, getInputProps, getMenuProps, getItemProps, getLabelProps, getToggleButtonProps, highlightedIndex } =
    useCombobox<Option>({
      items,
      itemToString: (o) => (o ? textOf(o) : ''),
      inputValue: typed ?? shown,
      selectedItem: current ?? null,
      defaultHighlightedIndex: free ? undefined : 0,
      onInputValueChange: ({ inputValue, type }) => {
        if (type !== useCombobox.stateChangeTypes.InputChange) return;
        setTyped(inputValue);
        if (free) onChange(inputValue);
      },
      onIsOpenChange: ({ isOpen: opened }) => {
        if (!opened) setTyped(undefined);
      },
      stateReducer: (_, { changes, type }) =>
        // Leaving the field must not choose what happens to be highlighted.
        type === useCombobox.stateChangeTypes.InputBlur ? { ...changes, selectedItem: current ?? null } : changes,
      onSelectedItemChange: ({ selectedItem, type }) => {
        if (type === useCombobox.stateChangeTypes.InputBlur || !selectedItem) return;
        setTyped(undefined);
        onChange(selectedItem.value);
      },
    });

  return (
    <div className={`combobox ${className}`}>
      <label {...getLabelProps()} className="visually-hidden">
        {label}
      </label>
      <div className="field">
        {icon}
        <input
          {...getInputProps({
            placeholder,
            autoFocus,
            spellCheck: false,
            autoComplete: 'off',
            title: shown,
            onFocus: (e) => e.currentTarget.select(),
            onKeyDown: (e) => {
              // The list is closed by Escape first, the panel around it by the next.
              if (e.key === 'Escape' && isOpen) e.stopPropagation();
            },
          })}
        />
        <button {...getToggleButtonProps({ 'aria-label': `${label}: show the list`, className: 'ghost' })} type="button">
          <ChevronsUpDown />
        </button>
      </div>
      <ul {...getMenuProps({ className: isOpen ? 'menu listbox' : 'closed' })}>
        {isOpen && items.length === 0 && (
          <li className="empty">{loading ? 'Loading…' : free ? 'No suggestion' : 'Nothing by this name'}</li>
        )}
        {isOpen &&
          items.map((o, i) => (
            <li
              key={o.value}
              {...getItemProps({ item: o, index: i, className: i === highlightedIndex ? 'highlighted' : '' })}
              title={textOf(o)}
            >
              <span className="tick">{o.value === value && <Check />}</span>
              <span className="text">{textOf(o)}</span>
              {o.note && <span className="note">{o.note}</span>}
            </li>
          ))}
        {isOpen && hits.length > items.length && <li className="empty">{hits.length - items.length} more: type to narrow down</li>}
      </ul>
    </div>
  );
}
