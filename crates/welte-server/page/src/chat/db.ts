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
    transaction.oncomplete = () => resolve(request ? request.result : absent);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
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
  const stores = ["chats", "messages"];
  return transact<void>(
    stores,
    "readwrite",
    (t) => {
      if (chat) t.objectStore("chats").put(chat);
      for (const message of messages) t.objectStore("messages").put(message);
    },
    undefined,
  );
}

export function removeMessages(chat: Chat, ids: string[]): Promise<void> {
  return transact<void>(
    ["chats", "messages"],
    "readwrite",
    (t) => {
      t.objectStore("chats").put(chat);
      for (const id of ids) t.objectStore("messages").delete(id);
    },
    undefined,
  );
}

export function removeChat(id: string): Promise<void> {
  return transact<void>(
    ["chats", "messages"],
    "readwrite",
    (t) => {
      t.objectStore("chats").delete(id);
      const cursor = t.objectStore("messages").index("chat").openKeyCursor(id);
      cursor.onsuccess = () => {
        if (!cursor.result) return;
        t.objectStore("messages").delete(cursor.result.primaryKey);
        cursor.result.continue();
      };
    },
    undefined,
  );
}
