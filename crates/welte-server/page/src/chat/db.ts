import type { Chat, Message } from "./tree";

// Conversations live in IndexedDB, one record per conversation and one per message. If the browser forbids that (private
// windows of some browsers), they live in memory until the page is closed.

const NAME = "welte";
const VERSION = 1;

let database: Promise<IDBDatabase | null> | undefined;

function open(): Promise<IDBDatabase | null> {
  database ??= new Promise((resolve) => {
    let request: IDBOpenDBRequest;
    try {
      request = indexedDB.open(NAME, VERSION);
    } catch {
      resolve(null);
      return;
    }
    request.onupgradeneeded = () => {
      request.result.createObjectStore("chats", { keyPath: "id" });
      request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("chat", "chat");
    };
    request.onsuccess = () => {
      // Let a newer version of the page upgrade the database.
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
    request.onerror = () => resolve(null);
  });
  return database;
}

/** Whether conversations outlive the page. */
export async function persistent(): Promise<boolean> {
  return (await open()) !== null;
}

/**
 * Runs one transaction. All its requests are made at once, and the commit is sent along with them. Without that, the browser
 * would tell the page that the requests have succeeded and wait for its answer; a page that is closed or reloaded gives none,
 * and its last change would be undone.
 */
async function transact<T>(
  stores: string[],
  mode: IDBTransactionMode,
  work: (transaction: IDBTransaction) => IDBRequest<T> | void,
  absent: T,
): Promise<T> {
  const db = await open();
  if (!db) return absent;
  return new Promise((resolve, reject) => {
    const transaction = db.transaction(stores, mode);
    const request = work(transaction);
    transaction.commit();
    transaction.oncomplete = () => resolve(request ? request.result : absent);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}

function write(work: (chats: IDBObjectStore, messages: IDBObjectStore) => void): Promise<void> {
  return transact<void>(
    ["chats", "messages"],
    "readwrite",
    (t) => work(t.objectStore("chats"), t.objectStore("messages")),
    undefined,
  );
}

export function loadChats(): Promise<Chat[]> {
  return transact<Chat[]>(["chats"], "readonly", (t) => t.objectStore("chats").getAll(), []);
}

export function loadChat(id: string): Promise<Chat | undefined> {
  return transact<Chat | undefined>(["chats"], "readonly", (t) => t.objectStore("chats").get(id), undefined);
}

export function loadMessages(chat: string): Promise<Message[]> {
  return transact<Message[]>(["messages"], "readonly", (t) => t.objectStore("messages").index("chat").getAll(chat), []);
}

export function loadAllMessages(): Promise<Message[]> {
  return transact<Message[]>(["messages"], "readonly", (t) => t.objectStore("messages").getAll(), []);
}

/** Writes a conversation and messages of it in one transaction. */
export function save(chat: Chat | undefined, messages: Message[]): Promise<void> {
  return write((chats, stored) => {
    if (chat) chats.put(chat);
    for (const message of messages) stored.put(message);
  });
}

export function removeMessages(chat: Chat, ids: string[]): Promise<void> {
  return write((chats, stored) => {
    chats.put(chat);
    for (const id of ids) stored.delete(id);
  });
}

/** Removes a conversation and its messages. `ids` are the messages that this tab knows. */
export async function removeChat(id: string, ids: string[]): Promise<void> {
  const removed = write((chats, stored) => {
    chats.delete(id);
    for (const message of ids) stored.delete(message);
  });
  // Another tab may have added messages. They are read before a later transaction can bring the conversation back.
  const keys = transact<IDBValidKey[]>(["messages"], "readonly", (t) => t.objectStore("messages").index("chat").getAllKeys(id), []);
  const [others] = await Promise.all([keys, removed]);
  if (others.length === 0) return;
  await write((_, stored) => {
    for (const key of others) stored.delete(key);
  });
}
