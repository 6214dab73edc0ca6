import type { Figures } from "../api/types";
import type { Problem } from "../api/problem";
import type { Options } from "./options";

/** A text file, an image or a sound that the user attached. */
export interface Attachment {
  name: string;
  /** Empty for an image or a sound. */
  text: string;
  /** An image as a data address. */
  image?: string;
  /** A sound as a data address. */
  audio?: string;
}

/** A call of a tool of an MCP server. */
export interface Call {
  id: string;
  server: string;
  tool: string;
  /** The name under which the model knows the tool. */
  name: string;
  /** JSON, as the model wrote it. */
  arguments: string;
  state: "asked" | "running" | "done" | "failed" | "declined";
  output?: string;
}

/** What the model says in one go. If it asks for calls, another round follows. */
export interface Round {
  text: string;
  thinking?: string;
  thinkingMs?: number;
  calls?: Call[];
}

/** One message. The messages of a conversation form a tree: versions of a message have the same parent. */
export interface Message extends Round {
  id: string;
  chat: string;
  /** The message before this one; "" for the first. */
  parent: string;
  role: "user" | "assistant";
  created: number;
  /** Attached to a user message. */
  files?: Attachment[];
  /** The fields below belong to answers. */
  state?: "streaming" | "done" | "stopped" | "failed";
  /** Rounds before the last one, whose text and thinking are those of the message. */
  rounds?: Round[];
  model?: string;
  /** The answer was made in JSON mode. */
  json?: boolean;
  problem?: Problem;
  stats?: Stats;
}

/** What is known about how an answer was made. */
export interface Stats extends Figures {
  prompt_tokens?: number;
  completion_tokens?: number;
  finish?: string;
}

export interface Chat {
  id: string;
  title: string;
  created: number;
  updated: number;
  /** The chosen version after each message; "" stands for the start of the conversation. */
  chosen: Record<string, string>;
  model: string;
  options: Options;
}

export type Messages = ReadonlyMap<string, Message>;

/** The versions of every parent, oldest first. */
export function byParent(messages: Messages): Map<string, Message[]> {
  const all = new Map<string, Message[]>();
  for (const message of messages.values()) {
    const list = all.get(message.parent);
    if (list) list.push(message);
    else all.set(message.parent, [message]);
  }
  for (const list of all.values()) list.sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
  return all;
}

/** The messages on the chosen path, first to last. Where nothing was chosen, the newest version counts. */
export function chosenPath(messages: Messages, chosen: Record<string, string>): Message[] {
  const children = byParent(messages);
  const path: Message[] = [];
  let parent = "";
  for (;;) {
    const options = children.get(parent);
    if (!options) return path;
    const next = options.find((message) => message.id === chosen[parent]) ?? options[options.length - 1]!;
    path.push(next);
    parent = next.id;
  }
}

/** The messages from the start to `id`, both included. */
export function pathTo(messages: Messages, id: string): Message[] {
  const path: Message[] = [];
  for (let at = messages.get(id); at; at = messages.get(at.parent)) path.unshift(at);
  return path;
}

/** A message and everything after it. */
export function subtree(messages: Messages, id: string): string[] {
  const children = byParent(messages);
  const found: string[] = [];
  const open = [id];
  for (let at = open.pop(); at !== undefined; at = open.pop()) {
    found.push(at);
    for (const child of children.get(at) ?? []) open.push(child.id);
  }
  return found;
}

/** The content of a message as the model gets it. */
export function content(message: Message): string {
  const texts = (message.files ?? []).filter(({ image, audio }) => image === undefined && audio === undefined);
  const files = texts.map(({ name, text }) => {
    const runs = text.match(/`{3,}/g) ?? [];
    const fence = "`".repeat(Math.max(3, ...runs.map((run) => run.length + 1)));
    return `File ${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}\n\n`;
  });
  return files.join("") + message.text;
}

/** A part of the content of a message, in OpenAI's form. */
export type Part =
  | { type: "text"; text: string }
  | { type: "image_url"; image_url: { url: string } }
  | { type: "input_audio"; input_audio: { data: string; format: string } };

/** A sound as a part. The server finds out what the bytes are; the format is for other servers. */
function soundPart(address: string): Part {
  const [head = "", data = ""] = address.split(",");
  const format = /^data:audio\/(?:x-)?(?:mpeg|(\w+))/.exec(head)?.[1] ?? "mp3";
  return { type: "input_audio", input_audio: { data, format } };
}

/** The content of a message: its text, and before it the images and sounds. */
function parts(message: Message): string | Part[] {
  const text = content(message);
  const images = (message.files ?? []).flatMap(({ image }) => image ?? []);
  const sounds = (message.files ?? []).flatMap(({ audio }) => audio ?? []);
  if (images.length === 0 && sounds.length === 0) return text;
  const list: Part[] = images.map((url) => ({ type: "image_url", image_url: { url } }));
  list.push(...sounds.map(soundPart));
  return text === "" ? list : [...list, { type: "text", text }];
}

/** A message as the model gets it. */
export interface RequestMessage {
  role: string;
  content: string | Part[];
  reasoning_content?: string;
  tool_calls?: unknown[];
  tool_call_id?: string;
}

/** Rounds with calls, and what the tools said. */
export function roundMessages(rounds: Round[]): RequestMessage[] {
  return rounds.flatMap(({ text, thinking, calls = [] }) => [
    {
      role: "assistant",
      content: text,
      ...(thinking && { reasoning_content: thinking }),
      tool_calls: calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } })),
    },
    ...calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: call.output ?? "The user declined this call." })),
  ]);
}

/** The messages of a request: the system prompt and the path. Failed and empty answers are left out. */
export function requestMessages(path: Message[], system: string): RequestMessage[] {
  const list: RequestMessage[] = [];
  if (system.trim() !== "") list.push({ role: "system", content: system });
  for (const message of path) {
    list.push(...roundMessages(message.rounds ?? []));
    if (message.role === "assistant" && message.text === "") continue;
    list.push({ role: message.role, content: parts(message) });
  }
  return list;
}

/** A title for a conversation: the first line of its first message. */
export function titleOf(message: Message): string {
  const line = message.text.trim().split("\n")[0] ?? "";
  const title = line === "" ? (message.files?.[0]?.name ?? "New conversation") : line;
  return title.length > 60 ? `${title.slice(0, 59).trimEnd()}…` : title;
}

/** A conversation as a document in markdown: what the reader sees of it, without thinking and other versions. */
export function asMarkdown(chat: Chat, path: Message[]): string {
  const parts = path.map((message) => {
    const speaker = message.role === "user" ? "You" : (message.model ?? "Answer");
    const rounds = (message.rounds ?? []).flatMap(({ text, calls = [] }) => [
      text.trim(),
      ...calls.map((call) => `*${call.tool} of ${call.server}:* \`${call.arguments}\``),
    ]);
    const said = [...rounds, content(message).trim()].filter((part) => part !== "");
    return `**${speaker}**\n\n${said.join("\n\n")}\n`;
  });
  const system = chat.options.system.trim();
  return [`# ${chat.title}\n`, ...(system === "" ? [] : [`**System**\n\n${system}\n`]), ...parts].join("\n");
}

/** A name for a file with a conversation, from its title. */
export function fileName(title: string): string {
  const words = title.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];
  return words.join("-").slice(0, 60) || "conversation";
}
