// Numbers as people read them.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value: number): string {
  return GROUPED.format(value);
}

/** `1,384`, `56.1`, `4.02`: three significant digits below 100. */
export function rate(value: number): string {
  if (value === 0) return "0";
  if (value >= 99.95) return count(value);
  return value.toFixed(value >= 9.995 ? 1 : 2);
}

const BINARY = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Bytes in the largest unit, like `welte inspect`. */
export function bytes(value: number): string {
  let unit = 0;
  while (value >= 1024 && unit < BINARY.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(unit === 0 ? 0 : unit < 3 ? 1 : 2)} ${BINARY[unit]}`;
}

const DECIMAL = ["", " thousand", " million", " billion", " trillion"];

export function parameters(value: number): string {
  let unit = 0;
  while (value >= 1000 && unit < DECIMAL.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? value.toFixed(0) : value.toFixed(1)}${DECIMAL[unit]}`;
}

/** `67 %`, `0.4 %`. */
export function percent(share: number): string {
  const value = 100 * share;
  return `${value > 0 && value < 9.95 ? value.toFixed(1) : value.toFixed(0)} %`;
}

export function duration(ms: number): string {
  if (ms < 1000) return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}
