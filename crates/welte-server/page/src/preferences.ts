import { effect, signal } from "@preact/signals";
import { type Options, NO_OPTIONS } from "./chat/options";

/** What the user set for all conversations. Kept in the browser's local storage. */
export interface Preferences {
  theme: "system" | "light" | "dark";
  apiKey: string;
  /** The model of new conversations; empty: the server's default. */
  model: string;
  /** The options of new conversations. */
  defaults: Options;
  sidebar: boolean;
}

const NAME = "welte.preferences";

const INITIAL: Preferences = { theme: "system", apiKey: "", model: "", defaults: NO_OPTIONS, sidebar: true };

function load(): Preferences {
  try {
    const stored = JSON.parse(localStorage.getItem(NAME) ?? "{}") as Partial<Preferences>;
    return { ...INITIAL, ...stored, defaults: { ...NO_OPTIONS, ...stored.defaults } };
  } catch {
    return INITIAL;
  }
}

export const preferences = signal<Preferences>(load());

export function setPreferences(change: Partial<Preferences>): void {
  preferences.value = { ...preferences.value, ...change };
  try {
    localStorage.setItem(NAME, JSON.stringify(preferences.value));
  } catch {
    // Storage is full or forbidden: the change lasts until the page is closed.
  }
}

// Another tab changed the preferences.
addEventListener("storage", (event) => {
  if (event.key === NAME) preferences.value = load();
});

effect(() => {
  const { theme } = preferences.value;
  document.documentElement.style.colorScheme = theme === "system" ? "light dark" : theme;
});
