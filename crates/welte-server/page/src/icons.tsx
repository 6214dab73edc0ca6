// Drawn on a grid of 20 by 20 with lines of 1.6.
const PATHS = {
  menu: "M3 6h14M3 10h14M3 14h14",
  plus: "M10 4v12M4 10h12",
  search: "M9 15a6 6 0 1 0 0-12 6 6 0 0 0 0 12zM13.5 13.5 17 17",
  send: "M10 16V4M5 9l5-5 5 5",
  attach: "M16 9.5l-6 6a3.5 3.5 0 0 1-5-5l6.5-6.5a2.4 2.4 0 0 1 3.4 3.4L8.5 13.8a1.2 1.2 0 0 1-1.7-1.7l5.7-5.6",
  microphone: "M10 12.5a3 3 0 0 0 3-3v-4a3 3 0 0 0-6 0v4a3 3 0 0 0 3 3zM4.5 9.5a5.5 5.5 0 0 0 11 0M10 15v2.5",
  copy: "M7.5 7.5h9v9h-9zM12.5 7.5v-4h-9v9h4",
  check: "M4 10.5 8 14.5 16 5.5",
  edit: "M4 16l.8-3.6L13 4.2l2.8 2.8-8.2 8.2zM11.5 5.7l2.8 2.8",
  again: "M16 10a6 6 0 1 1-1.8-4.3M16 3.5v3.2h-3.2",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  down: "M10 4v12M5 11l5 5 5-5",
  save: "M10 3v9M6 8.5l4 4 4-4M4 16.5h12",
  models: "M10 2.5l7 3.5-7 3.5L3 6zM3 10l7 3.5 7-3.5M3 14l7 3.5 7-3.5",
  close: "M5 5l10 10M15 5 5 15",
  trash: "M4 6h12M8 6V4h4v2M5.5 6l.7 10h7.6l.7-10M8.5 9v4M11.5 9v4",
  settings: "M3 6h7M14 6h3M3 14h3M10 14h7M12 4v4M8 12v4",
  keyboard: "M2.5 5.5h15v9h-15zM5.5 8.5h.01M8.5 8.5h.01M11.5 8.5h.01M14.5 8.5h.01M6.5 11.5h7",
  sun: "M10 13a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM10 2v2M10 16v2M2 10h2M16 10h2M4.4 4.4l1.4 1.4M14.2 14.2l1.4 1.4M4.4 15.6l1.4-1.4M14.2 5.8l1.4-1.4",
  moon: "M16 11.8A6.5 6.5 0 0 1 8.2 4a6.5 6.5 0 1 0 7.8 7.8z",
  screen: "M3 4h14v9H3zM7 16.5h6M10 13v3.5",
  roll: "M3 5h6M12 5h5M6 10h4M13 10h4M3 15h3M9 15h7",
  file: "M5 2.5h6l4 4v11H5zM11 2.5v4h4",
  tool: "M12.5 3.5a4 4 0 0 0-3.6 5.6L3.5 14.5l2 2 5.4-5.4a4 4 0 0 0 5.4-4.9l-2.4 2.4-2.5-.6-.6-2.5 2.4-2.4a4 4 0 0 0-.7-.1z",
  warning: "M10 3 2.5 16.5h15zM10 8v4M10 14.3v.01",
};

export type IconName = keyof typeof PATHS | "stop";

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true">
      {name === "stop" ? <rect x="5.5" y="5.5" width="9" height="9" rx="1.5" fill="currentColor" /> : <path d={PATHS[name]} />}
    </svg>
  );
}

/** The sign of the engine: holes in a paper roll. */
export function Logo() {
  return (
    <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
      <rect class="logo-roll" width="32" height="32" rx="7" />
      <path class="logo-holes" d="M7 9h8M22 9h3M11 16h1M19 16h6M7 23h3M17 23h4" />
    </svg>
  );
}
