import type { Attachment } from "./tree";

const LARGEST = 1 << 20;
const LARGEST_MEDIUM = 20 << 20;

/** Reads an image or a sound. Whether it is one, the server finds out. */
async function readMedium(file: File, kind: "image" | "audio"): Promise<Attachment> {
  if (file.size > LARGEST_MEDIUM) throw new Error(`${file.name} is larger than 20 MiB.`);
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve({ name: file.name || kind, text: "", [kind]: reader.result as string });
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

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

/** Reads files. Returns those that are text or images, or sounds if the model `hears`, and why the others are not. */
export async function readFiles(files: Iterable<File>, hears: boolean): Promise<{ read: Attachment[]; problems: string[] }> {
  const read: Attachment[] = [];
  const problems: string[] = [];
  for (const file of files) {
    try {
      const image = file.type.startsWith("image/") && file.type !== "image/svg+xml";
      const audio = file.type.startsWith("audio/");
      if (audio && !hears) throw new Error(`${file.name} is a sound, and this model does not hear.`);
      read.push(await (image ? readMedium(file, "image") : audio ? readMedium(file, "audio") : readFile(file)));
    } catch (error) {
      problems.push((error as Error).message);
    }
  }
  return { read, problems };
}
