// How WebAssembly waits for the browser: its whole stack is suspended until a callback has called `resume`.
let woken = false;
let wake = null;

export const suspend = new WebAssembly.Suspending(async () => {
  if (!woken) {
    await new Promise((resolve) => (wake = resolve));
  }
  woken = false;
});

export function resume() {
  woken = true;
  wake?.();
  wake = null;
}
