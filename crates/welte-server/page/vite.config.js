import { defineConfig } from "vite";

// The built files are committed and compared in CI, so their names and contents depend on the sources only.
export default defineConfig({
  base: "./",
  build: {
    target: "es2022",
    // The style sheets use `light-dark`, which older targets would rewrite.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    reportCompressedSize: false,
    license: { fileName: "licenses.md" },
    rolldownOptions: {
      // CodeMirror's modules define several languages each. These calls have no effect, so unused languages go.
      treeshake: { manualPureFunctions: ["clike", "words"] },
      output: {
        entryFileNames: "page.js",
        chunkFileNames: "[name].js",
        assetFileNames: (asset) => (asset.names.some((name) => name.endsWith(".css")) ? "page.css" : "[name][extname]"),
      },
    },
  },
});
