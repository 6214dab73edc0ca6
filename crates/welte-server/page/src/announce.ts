import { signal } from "@preact/signals";

/** Texts for screen readers, oldest first. The page renders them in a live region. */
export const announcements = signal<{ id: number; text: string }[]>([]);

/** A message that the page shows for some seconds, with an action. */
export const toast = signal<{ text: string; action?: string; run?: () => void } | null>(null);

/** After this time without a new text the live region is emptied, so that nobody finds the texts twice on the page. */
const KEEP_MS = 10_000;

let serial = 0;
let toastTimer = 0;
let logTimer = 0;

/** Has screen readers read a text after those that came before. */
export function announce(text: string): void {
  serial += 1;
  announcements.value = [...announcements.value, { id: serial, text }];
  clearTimeout(logTimer);
  logTimer = setTimeout(() => (announcements.value = []), KEEP_MS);
}

export function showToast(text: string, action?: string, run?: () => void): void {
  toast.value = { text, action, run };
  announce(action ? `${text} Button: ${action}.` : text);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (toast.value = null), action ? 10_000 : 4_000);
}
