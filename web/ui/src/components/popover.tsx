import { useEffect, useId, useRef, useState, type ReactNode } from 'react';

interface Props {
  /** What the button shows. */
  button: ReactNode;
  label: string;
  className?: string;
  align?: 'left' | 'right';
  children: (close: () => void) => ReactNode;
}

/** A button that opens a panel below it. Escape, a click elsewhere and leaving it with Tab close it. */
export function Popover({ button, label, className = 'button', align = 'left', children }: Props) {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const opener = useRef<HTMLButtonElement>(null);
  const id = useId();

  useEffect(() => {
    if (!open) return;
    box.current?.querySelector<HTMLElement>('.popover input, .popover button')?.focus();
    const outside = (e: PointerEvent) => {
      if (!box.current?.contains(e.target as Node)) setOpen(false);
    };
    document.addEventListener('pointerdown', outside);
    return () => document.removeEventListener('pointerdown', outside);
  }, [open]);

  const close = () => {
    setOpen(false);
    opener.current?.focus();
  };

  return (
    <div
      className="popover-box"
      ref={box}
      onKeyDown={(e) => {
        if (e.key === 'Escape' && open) {
          e.preventDefault();
          close();
        }
      }}
      onBlur={(e) => {
        if (open && e.relatedTarget && !box.current?.contains(e.relatedTarget as Node)) setOpen(false);
      }}
    >
      <button
        type="button"
        ref={opener}
        className={className}
        aria-label={label}
        title={label}
        aria-haspopup="dialog"
        aria-expanded={open}
        aria-controls={open ? id : undefined}
        onClick={() => setOpen(!open)}
      >
        {button}
      </button>
      {open && (
        <div className={`popover ${align}`} id={id} role="dialog" aria-label={label}>
          {children(close)}
        </div>
      )}
    </div>
  );
}
