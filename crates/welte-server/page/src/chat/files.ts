import type { Attachment } from "./tree";

const LARGEST = 1 << 20;

/** Reads a text file. Throws, in words, if it is too large or not text. */
async function readFile(file: File): Promise<Attachment> {
  if (file.size > LARGEST) throw new Error(`${file.name} is larger than 1 MiB.`);
  const data = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    if (text.includes("\0")) throw new Error("NUL");
    return { name: file.name, text: text.replaceAll("\r\n", "\n") };
  } catch {
    throw new Error(`${file.name} is not a text file in UTF-8.`);
  }
}

/** Reads files. Returns those that are text, and why the others are not. */
export async function readFiles(files: Iterable<File>): Promise<{ read: Attachment[]; problems: string[] }> {
  const read: Attachment[] = [];
  const problems: string[] = [];
  for (const file of files) {
    try {
      read.push(await readFile(file));
    } catch (error) {
      problems.push((error as Error).message);
    }
  }
  return { read, problems };
}
