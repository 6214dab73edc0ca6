// Models of the hub, and the files of them that this browser keeps for the page (in its private file system, OPFS).
export const HUB = "https://huggingface.co";

const PART = ".part"; // the end of a file that has not come as a whole
const PREFERRED = "Q4_K_M";

const folder = async () => (await navigator.storage.getDirectory()).getDirectoryHandle("models", { create: true });
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(2)} GiB`;

/** What this browser keeps: names, bytes, and whether a download is unfinished. */
export async function list() {
  const models = [];
  for await (const [name, handle] of (await folder()).entries()) {
    const partial = name.endsWith(PART);
    const whole = partial ? name.slice(0, -PART.length) : name;
    models.push({ name: decodeURIComponent(whole), bytes: (await handle.getFile()).size, partial });
  }
  return models.sort((a, b) => a.name.localeCompare(b.name));
}

/** The file of a model that is here; `undefined` if it is not. */
export async function saved(name) {
  const handle = await (await folder()).getFileHandle(encodeURIComponent(name)).catch(() => undefined);
  return handle?.getFile();
}

/** Removes a model, or its partial download. */
export async function remove(name) {
  const files = await folder();
  for (const end of ["", PART]) {
    await files.removeEntry(encodeURIComponent(name) + end).catch(() => undefined);
  }
}

/** Where a model is: `ORG/NAME`, `ORG/NAME:QUANT`, `ORG/NAME/FILE.gguf`, or the address of a GGUF file. */
export async function find(wanted, hub = HUB, signal) {
  if (/^https?:/.test(wanted)) {
    return { name: wanted, url: wanted };
  }
  const [, repository, file, quant] = /^([\w.-]+\/[\w.-]+?)(?:\/(.+\.gguf)|:([\w.-]+))?$/i.exec(wanted) ?? [];
  if (!repository) {
    throw new Error(`${wanted}: write ORG/NAME, ORG/NAME:QUANT, ORG/NAME/FILE.gguf, or the address of a GGUF file`);
  }
  const response = await fetch(`${hub}/api/models/${repository}/tree/main?recursive=true`, { signal });
  if (!response.ok) {
    throw new Error(`${repository}: ${explain(response.status)}`);
  }
  const files = (await response.json()).filter(({ path }) => /\.gguf$/i.test(path) && !/mmproj/i.test(path));
  const ends = (quant) => new RegExp(`[-._/]${quant.replaceAll(".", "\\.")}([-.].*)?\\.gguf$`, "i");
  const chosen = file
    ? files.find(({ path }) => path === file)
    : files.find(({ path }) => ends(quant ?? PREFERRED).test(path)) ?? (quant ? undefined : files[0]);
  if (!chosen) {
    const known = files.map(({ path }) => path).join(", ") || "none";
    throw new Error(`${wanted}: there is no such GGUF file; the repository has ${known}`);
  }
  const { path, size } = chosen;
  if (/-\d{5}-of-\d{5}\.gguf$/i.test(path)) {
    throw new Error(`${repository}/${path} is one of several parts; this page takes models of one file`);
  }
  const url = `${hub}/${repository}/resolve/main/${path}`;
  // Another hub may have another file of that name.
  return { name: hub === HUB ? `${repository}/${path}` : url, url, size };
}

/** The file of a model: kept here, or downloaded and then kept. A download that ended early goes on where it was. */
export async function download({ name, url, size }, progress, signal) {
  const kept = await saved(name);
  if (kept) {
    return kept;
  }
  const files = await folder();
  const handle = await files.getFileHandle(encodeURIComponent(name) + PART, { create: true });
  const file = await handle.createSyncAccessHandle().catch((error) => {
    const busy = error.name === "NoModificationAllowedError";
    throw busy ? new Error(`${name}: another page of this browser is downloading it`) : error;
  });
  try {
    await complete(file, { name, url, size }, progress, signal);
  } finally {
    file.close();
  }
  await handle.move(encodeURIComponent(name));
  return saved(name);
}

/** Downloads what a file lacks. */
async function complete(file, { name, url, size }, progress, signal) {
  let done = file.getSize();
  if (done > 0 && done === size) {
    return;
  }
  const response = await fetch(url, { signal, headers: done ? { range: `bytes=${done}-` } : {} });
  const [, from, whole] = /bytes (?:(\d+)-\d+|\*)\/(\d+)/.exec(response.headers.get("content-range") ?? "") ?? [];
  if (response.status === 416) {
    if (Number(whole) === done) {
      return;
    }
    file.truncate(0);
    throw new Error(`${name}: it has changed since its first part came; get it again`);
  }
  if (!response.ok) {
    throw new Error(`${name}: ${explain(response.status)}`);
  }
  // Some servers do not show the range to pages.
  if (response.status !== 206 || (from !== undefined && Number(from) !== done)) {
    file.truncate(0);
    done = 0;
  }
  const total = size ?? done + Number(response.headers.get("content-length"));
  if (total === done) {
    throw new Error(`${name}: the server does not say how long it is`);
  }
  const { quota = Infinity, usage = 0 } = await navigator.storage.estimate();
  if (total - done > quota - usage) {
    throw new Error(`${name} needs ${gib(total - done)}, but this browser lets the page keep ${gib(quota - usage)} more; remove a model`);
  }
  for (const reader = response.body.getReader(); ; ) {
    const part = await reader.read();
    if (part.done) {
      break;
    }
    const written = file.write(part.value, { at: done });
    if (written !== part.value.length) {
      file.truncate(done);
      throw new Error(`${name}: this browser has no more room for it; remove a model`);
    }
    done += written;
    progress(done, total);
  }
  if (done !== total) {
    throw new Error(`${name}: the connection ended after ${gib(done)} of ${gib(total)}; get it again to go on`);
  }
}

function explain(status) {
  const known = { 401: "it does not exist, or needs an account", 403: "access needs an account", 404: "it does not exist" };
  return known[status] ?? `the server answers ${status}`;
}
