#!/usr/bin/env node
// Runs the program of the package for this system. npm installs that one of the optional dependencies.
"use strict";
const { spawn } = require("node:child_process");
const os = require("node:os");

const name = `@welte/${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/welte`);
} catch {
  console.error(
    `error: the package ${name} is missing. Either there is none for this system, or it was left out: install without --omit=optional.`,
  );
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends its signals to the program, too. Others are passed on.
process.on("SIGINT", () => {});
for (const signal of ["SIGTERM", "SIGHUP"]) {
  process.on(signal, () => child.kill(signal));
}
child.on("error", (error) => {
  console.error(`error: ${program}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => process.exit(code ?? 128 + (os.constants.signals[signal] ?? 0)));
