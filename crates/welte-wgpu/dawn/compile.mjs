// Reads every kernel in a folder with Dawn and makes its pipeline, for an adapter without optional features:
// `node compile.mjs FOLDER`. The adapter does nothing, so no driver compiles anything: what is checked is Dawn's reading of WGSL.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { create } from "webgpu";

const folder = process.argv[2];
const names = readdirSync(folder).filter((name) => name.endsWith(".wgsl")).sort();
// Dawn stops the process if this is collected while the device is in use.
globalThis.gpu = create(["backend=null"]);
const adapter = await globalThis.gpu.requestAdapter();
const device = await adapter?.requestDevice();
if (!device || names.length === 0) {
  console.error(device ? `${folder} has no kernel` : "Dawn finds no adapter");
  process.exit(1);
}
let failed = 0;
for (const name of names) {
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ code: readFileSync(join(folder, name), "utf8") });
  device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: "main" } });
  const error = await device.popErrorScope();
  if (error) {
    failed += 1;
    console.error(`${name}: ${error.message}`);
  }
}
console.log(`${names.length - failed} of ${names.length} kernels compile`);
process.exit(failed ? 1 : 0);
