import { batch, computed, effect, signal } from "@preact/signals";
import { streamAnswer } from "../api/client";
import { type Problem, RequestError, BROKEN } from "../api/problem";
import { announce, showToast } from "../announce";
import { preferences } from "../preferences";
import { go, route } from "../route";
import { Answer } from "./answer";
import * as db from "./db";
import { modelFor, refreshModels } from "./models";
import { type Options, requestFields } from "./options";
import { asked, offeredTools, runCalls, toolFields } from "./tools";
import * as tree from "./tree";
import type { Attachment, Chat, Message, Messages } from "./tree";

/** How often a streaming answer is saved. */
const SAVE_MS = 1000;

const NOTHING: Messages = new Map();

/** All conversations, the last used first. */
export const chats = signal<Chat[]>([]);
/** Whether the conversations have been read. */
export const ready = signal(false);
/** Whether conversations are kept after the page is closed. */
export const persistent = signal(true);
/** Answers that stream right now, by the id of their message. */
export const answers = signal<ReadonlyMap<string, Answer>>(new Map());

/** The model and the options of a conversation that has no message yet. */
const draft = signal<Pick<Chat, "model" | "options">>({ model: "", options: preferences.value.defaults });

/** The messages of the conversations that were opened, by conversation. */
const loaded = signal<ReadonlyMap<string, Messages>>(new Map());

/** The open conversation; undefined for a new one. */
export const chat = computed(() => chats.value.find((c) => c.id === route.value.chat));
export const model = computed(() => modelFor((chat.value ?? draft.value).model));
export const options = computed(() => (chat.value ?? draft.value).options);
export const messages = computed(() => (chat.value && loaded.value.get(chat.value.id)) ?? NOTHING);
export const path = computed(() => tree.chosenPath(messages.value, chat.value?.chosen ?? {}));
export const versions = computed(() => tree.byParent(messages.value));
/** The message of the open conversation that streams, if any. */
export const streaming = computed(() => path.value.find((message) => answers.value.has(message.id)));

const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("welte");

export async function start(): Promise<void> {
  persistent.value = await db.persistent();
  await reloadChats();
  ready.value = true;
  effect(() => {
    const { page, chat: id } = route.value;
    if (page !== "chat" || id === "") return;
    if (chats.peek().some((c) => c.id === id)) void load(id);
    else go({ page: "chat", chat: "" }, true);
  });
}

if (channel) {
  // Another tab changed a conversation.
  channel.onmessage = async ({ data: id }: MessageEvent<string>) => {
    await reloadChats();
    const [known, before] = [loaded.value.get(id), changes.get(id)];
    if (!known) return;
    const list = await db.loadMessages(id);
    const streams = [...answers.value.keys()].some((message) => known.has(message));
    if (!streams && changes.get(id) === before) setMessages(id, index(list));
  };
}

/** How often this tab has changed each conversation. */
const changes = new Map<string, number>();

async function reloadChats(): Promise<void> {
  if (!persistent.value) return;
  const before = new Map(changes);
  const stored = await db.loadChats();
  // What this tab has changed meanwhile is newer than what was read.
  const changed = (id: string) => changes.get(id) !== before.get(id);
  const own = chats.value.filter(({ id }) => changed(id));
  const others = stored.filter(({ id }) => !changed(id));
  chats.value = [...own, ...others].sort((a, b) => b.updated - a.updated);
}

function index(list: Message[]): Messages {
  return new Map(list.map((message) => [message.id, message]));
}

function setMessages(id: string, list: Messages | undefined): void {
  const next = new Map(loaded.value);
  if (list) next.set(id, list);
  else next.delete(id);
  loaded.value = next;
}

async function load(id: string): Promise<void> {
  if (loaded.peek().has(id)) return;
  const list = (await db.loadMessages(id)).map((message): Message => {
    // The page was closed while this answer streamed.
    return message.state === "streaming" ? { ...message, state: "failed", problem: BROKEN } : message;
  });
  if (!loaded.peek().has(id)) setMessages(id, index(list));
}

/** Saves without blocking. A failure, such as a full disk, is shown; the conversation goes on in memory. */
function saved(work: Promise<void>, id: string): void {
  changes.set(id, (changes.get(id) ?? 0) + 1);
  work.then(
    () => channel?.postMessage(id),
    (error: unknown) => showToast(`The browser could not save the conversation: ${String(error)}`),
  );
}

function newId(): string {
  // `crypto.randomUUID` does not exist on pages served over plain HTTP.
  const random = crypto.getRandomValues(new Uint32Array(3));
  return Array.from(random, (word) => word.toString(36)).join("");
}

/** Adds or replaces messages of a conversation. */
function put(id: string, changed: Message[]): void {
  const next = new Map(loaded.value.get(id));
  for (const message of changed) next.set(message.id, message);
  setMessages(id, next);
  saved(db.save(undefined, changed), id);
}

function changeChat(id: string, change: Partial<Chat>): Chat {
  const old = chats.value.find((c) => c.id === id)!;
  const next = { ...old, ...change };
  const others = chats.value.map((c) => (c.id === id ? next : c));
  chats.value = change.updated ? others.sort((a, b) => b.updated - a.updated) : others;
  return next;
}

function saveChat(id: string, change: Partial<Chat>): void {
  saved(db.save(changeChat(id, change), []), id);
}

export function setModel(id: string): void {
  if (chat.value) saveChat(chat.value.id, { model: id });
  else draft.value = { ...draft.value, model: id };
}

export function setOptions(change: Partial<Options>): void {
  const next = { ...options.value, ...change };
  if (chat.value) saveChat(chat.value.id, { options: next });
  else draft.value = { ...draft.value, options: next };
}

export function newChat(): void {
  draft.value = { model: "", options: preferences.value.defaults };
  go({ page: "chat", chat: "" });
}

export function rename(id: string, title: string): void {
  saveChat(id, { title });
}

/** Shows a version of a message. */
export function choose(message: Message): void {
  const owner = chats.value.find((c) => c.id === message.chat);
  if (owner) saveChat(owner.id, { chosen: { ...owner.chosen, [message.parent]: message.id } });
}

/** Sends a message at the end of the open conversation, or starts a conversation with it. */
export function send(text: string, files: Attachment[]): void {
  const parent = path.value.at(-1)?.id ?? "";
  const message: Message = {
    id: newId(),
    chat: chat.value?.id ?? newId(),
    parent,
    role: "user",
    text,
    created: Date.now(),
    ...(files.length > 0 && { files }),
  };
  if (!chat.value) {
    const created: Chat = {
      id: message.chat,
      title: tree.titleOf(message),
      created: message.created,
      updated: message.created,
      chosen: {},
      ...draft.value,
    };
    setMessages(created.id, NOTHING);
    chats.value = [created, ...chats.value];
    go({ page: "chat", chat: created.id });
  }
  ask(message);
}

/** Adds a user message and asks for its answer. */
function ask(message: Message): void {
  const owner = chats.value.find((c) => c.id === message.chat)!;
  const chosen = { ...owner.chosen, [message.parent]: message.id };
  put(message.chat, [message]);
  saveChat(message.chat, { chosen, updated: Date.now() });
  answer(message.chat, message.id);
}

/** Replaces the text of a message by a new version. A user message is answered again. */
export function edit(message: Message, text: string): void {
  const version: Message = { ...message, id: newId(), text, created: Date.now() };
  if (message.role === "user") {
    ask(version);
    return;
  }
  delete version.stats;
  delete version.problem;
  version.state = "done";
  put(message.chat, [version]);
  choose(version);
}

/** Makes another version of an answer. An answer that failed without text is replaced. */
export function regenerate(message: Message): void {
  if (message.state === "failed" && message.text === "" && !message.rounds) removeVersion(message);
  answer(message.chat, message.parent);
}

/** Answers a user message that has no answer. */
export function answerAgain(message: Message): void {
  answer(message.chat, message.id);
}

function removeVersion(message: Message): void {
  const known = loaded.value.get(message.chat);
  const owner = chats.value.find((c) => c.id === message.chat);
  if (!known || !owner) return;
  const ids = tree.subtree(known, message.id);
  for (const id of ids) answers.value.get(id)?.controller.abort();
  const next = new Map(known);
  for (const id of ids) next.delete(id);
  setMessages(message.chat, next);
  const chosen = { ...owner.chosen };
  for (const id of ids) delete chosen[id];
  if (chosen[message.parent] === message.id) delete chosen[message.parent];
  saved(db.removeMessages(changeChat(owner.id, { chosen }), ids), owner.id);
}

/** Deletes a version of a message with everything after it. */
export function removeMessage(message: Message): void {
  const owner = chats.value.find((c) => c.id === message.chat);
  const known = loaded.value.get(message.chat);
  if (!owner || !known) return;
  const removed = tree.subtree(known, message.id).map((id) => known.get(id)!);
  removeVersion(message);
  showToast("Message deleted.", "Undo", () => {
    put(owner.id, removed);
    saveChat(owner.id, { chosen: owner.chosen });
  });
}

export function stop(): void {
  const message = streaming.value;
  if (message) answers.value.get(message.id)?.controller.abort();
}

export async function removeChat(id: string): Promise<void> {
  const removed = chats.value.find((c) => c.id === id);
  if (!removed) return;
  const list = loaded.value.get(id) ?? index(await db.loadMessages(id));
  for (const message of list.keys()) answers.value.get(message)?.controller.abort();
  chats.value = chats.value.filter((c) => c.id !== id);
  setMessages(id, undefined);
  if (route.value.chat === id) go({ page: route.value.page, chat: "" }, true);
  saved(db.removeChat(id, [...list.keys()]), id);
  showToast("Conversation deleted.", "Undo", () => addChat(removed, [...list.values()]));
}

function addChat(added: Chat, list: Message[]): void {
  setMessages(added.id, index(list));
  chats.value = [added, ...chats.value.filter((c) => c.id !== added.id)].sort((a, b) => b.updated - a.updated);
  saved(db.save(added, list), added.id);
}

/** Every conversation with its messages, for a backup. */
export async function exportAll(): Promise<{ welte: 1; chats: Chat[]; messages: Message[] }> {
  const kept = await db.loadAllMessages();
  const list = kept.length > 0 ? kept : [...loaded.value.values()].flatMap((known) => [...known.values()]);
  return { welte: 1, chats: chats.value, messages: list };
}

/** The shown versions of a conversation's messages as a document in markdown. */
export async function exportChat(owner: Chat): Promise<string> {
  const known = loaded.value.get(owner.id) ?? index(await db.loadMessages(owner.id));
  return tree.asMarkdown(owner, tree.chosenPath(known, owner.chosen));
}

/** Adds the conversations of a backup. Those with the same id are replaced. Returns how many there were. */
export function importAll(backup: unknown): number {
  const { welte, chats: list, messages: all } = backup as { welte?: unknown; chats?: Chat[]; messages?: Message[] };
  const whole =
    welte === 1 &&
    Array.isArray(list) &&
    Array.isArray(all) &&
    list.every((c) => typeof c.id === "string" && typeof c.title === "string" && c.chosen && c.options) &&
    all.every((m) => typeof m.id === "string" && typeof m.chat === "string" && typeof m.text === "string");
  if (!whole) throw new Error("The file is not a backup of this page.");
  for (const c of list) {
    addChat(
      c,
      all.filter((message) => message.chat === c.id),
    );
  }
  return list.length;
}

/** Conversations whose title or messages contain a text. */
export async function search(text: string): Promise<Set<string>> {
  const wanted = text.toLowerCase();
  const found = new Set(chats.value.filter((c) => c.title.toLowerCase().includes(wanted)).map((c) => c.id));
  for (const message of (await exportAll()).messages) {
    if (message.text.toLowerCase().includes(wanted)) found.add(message.chat);
  }
  return found;
}

function setAnswer(id: string, live: Answer | undefined): void {
  const next = new Map(answers.value);
  if (live) next.set(id, live);
  else next.delete(id);
  answers.value = next;
}

/** Asks the model for an answer after `parent` and streams it into a new message. */
function answer(id: string, parent: string): void {
  const owner = chats.value.find((c) => c.id === id)!;
  const message: Message = {
    id: newId(),
    chat: id,
    parent,
    role: "assistant",
    text: "",
    // Later than the message it answers, even if both were made in the same millisecond.
    created: Math.max(Date.now(), (loaded.value.get(id)?.get(parent)?.created ?? 0) + 1),
    state: "streaming",
    model: modelFor(owner.model),
    ...(owner.options.json && { json: true }),
  };
  const live = new Answer();
  setAnswer(message.id, live);
  put(id, [message]);
  saveChat(id, { chosen: { ...owner.chosen, [parent]: message.id } });
  announce("The answer has begun.");
  void stream(message, owner.options, live);
}

async function stream(message: Message, settings: Options, live: Answer): Promise<void> {
  let end: Partial<Message>;
  let lastSave = performance.now();
  const save = () => {
    lastSave = performance.now();
    saved(db.save(undefined, [{ ...message, ...live.received() }]), message.chat);
  };
  const { signal } = live.controller;
  try {
    const known = loaded.value.get(message.chat)!;
    const before = tree.requestMessages(tree.pathTo(known, message.parent), settings.system);
    const offer = settings.tools && !settings.json ? await offeredTools(signal) : new Map();
    const fields = {
      model: message.model,
      stream: true,
      stream_options: { include_usage: true },
      ...requestFields(settings),
      ...toolFields(offer),
    };
    const ask = () =>
      streamAnswer({ ...fields, messages: [...before, ...tree.roundMessages(live.rounds.value)] }, signal, (text, thinking) => {
        live.append(text, thinking);
        if (performance.now() - lastSave > SAVE_MS) save();
      });
    let finish = await ask();
    while (finish.calls.length > 0) {
      const calls = asked(finish.calls, offer);
      live.call(calls);
      save();
      await runCalls(calls, live);
      save();
      finish = await ask();
    }
    const { usage, figures } = finish;
    const stats: tree.Stats = { finish: finish.reason, ...figures };
    if (usage) {
      stats.prompt_tokens = usage.prompt_tokens;
      stats.completion_tokens = usage.completion_tokens;
      stats.cached_tokens ??= usage.prompt_tokens_details?.cached_tokens;
    }
    stats.tokens_per_second ??= live.rate();
    end = { state: "done", stats };
  } catch (error) {
    if (signal.aborted) end = { state: "stopped", stats: { tokens_per_second: live.rate() } };
    else end = { state: "failed", problem: problemOfError(error) };
  }
  const done: Message = { ...message, ...end, ...live.received() };
  batch(() => {
    // The message may have been deleted in the meantime.
    if (loaded.value.get(message.chat)?.has(message.id)) put(message.chat, [done]);
    setAnswer(message.id, undefined);
  });
  // A first request may have loaded a model.
  if (end.state === "done") void refreshModels();
}

function problemOfError(error: unknown): Problem {
  if (error instanceof RequestError) return error.problem;
  if (error instanceof SyntaxError) {
    return { kind: "refused", title: "The schema in the settings is not JSON.", detail: error.message };
  }
  return { kind: "failed", title: "The page failed.", detail: String(error) };
}
