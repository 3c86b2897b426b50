export function StatusPage() {
  return null;
}
