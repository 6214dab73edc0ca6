import { effect, signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { announcements, toast } from "../announce";
import { afterRender, IconButton } from "../controls";
import { preferences, setPreferences } from "../preferences";
import { route } from "../route";
import { Composer } from "./composer";
import { edited, MessageView } from "./message";
import { chatModels, models, modelsProblem, refreshModels } from "./models";
import { ModelsDialog } from "./models-dialog";
import { KeyForm } from "./problem";
import { SettingsDialog } from "./settings";
import { ShortcutsDialog } from "./shortcuts";
import { Sidebar } from "./sidebar";
import { Start } from "./start";
import { refreshToolServers } from "./tools";
import { answers, chat, model, newChat, path, ready, regenerate, setModel, stop, streaming } from "./store";

const NARROW = matchMedia("(max-width: 760px)");

const dialog = signal<"none" | "models" | "settings" | "shortcuts">("none");
/** Whether the sidebar is open. On a narrow screen it starts closed and nobody remembers it. */
const sidebar = signal(!NARROW.matches && preferences.value.sidebar);

function showSidebar(open: boolean): void {
  // The focus must not stay in a part of the page that is hidden now.
  const hidden = !open ? ".sidebar" : NARROW.matches ? ".main-column" : ".top";
  const lost = document.activeElement?.closest(hidden);
  sidebar.value = open;
  if (!NARROW.matches) setPreferences({ sidebar: open });
  if (!lost) return;
  afterRender(() => {
    document.querySelector<HTMLElement>(open ? ".sidebar header button" : ".top button")?.focus();
  });
}

export function ChatPage() {
  useEffect(() => void refreshModels(), []);
  // Once the server has accepted the key.
  useEffect(() => {
    if (models.value.length > 0) void refreshToolServers();
  }, [models.value.length > 0]);
  // Before the page is painted, so that no key is lost.
  useLayoutEffect(() => {
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
  const close = () => (dialog.value = "none");
  return (
    <div class={`chat-page ${sidebar.value ? "with-sidebar" : ""}`}>
      <a class="skip" href="#message" onClick={focusMessage}>
        Go to the message field
      </a>
      <Sidebar
        open={sidebar.value}
        onClose={() => showSidebar(false)}
        onSettings={() => (dialog.value = "settings")}
        onShortcuts={() => (dialog.value = "shortcuts")}
      />
      <button
        type="button"
        class="shade"
        aria-label="Hide conversations"
        tabIndex={-1}
        onClick={() => showSidebar(false)}
      />
      <div class="main-column" inert={sidebar.value && NARROW.matches}>
        <Header />
        <Conversation />
        <Composer onSettings={() => (dialog.value = "settings")} />
      </div>
      {dialog.value === "models" && <ModelsDialog chosen={model.value} onChoose={chooseModel} onClose={close} />}
      {dialog.value === "settings" && <SettingsDialog onClose={close} />}
      {dialog.value === "shortcuts" && <ShortcutsDialog onClose={close} />}
      <div class="hidden" role="log" aria-live="polite" aria-label="Announcements">
        {announcements.value.map(({ id, text }) => (
          <p key={id}>{text}</p>
        ))}
      </div>
      <Toast />
    </div>
  );
}

function Toast() {
  const ref = useRef<HTMLDivElement>(null);
  const shown = toast.value;
  useEffect(() => {
    // As a popover it lies above an open dialog.
    ref.current?.hidePopover();
    if (shown) ref.current?.showPopover();
  }, [shown]);
  return (
    <div ref={ref} class="toast" popover="manual">
      <span>{shown?.text}</span>
      {shown?.action && (
        <button
          type="button"
          onClick={() => {
            shown.run?.();
            toast.value = null;
          }}
        >
          {shown.action}
        </button>
      )}
    </div>
  );
}

function Header() {
  return (
    <header class="top">
      {!sidebar.value && <IconButton icon="menu" label="Show conversations" onClick={() => showSidebar(true)} />}
      {!sidebar.value && <IconButton icon="plus" label="New conversation" onClick={newChat} />}
      {models.value.length > 0 && (
        <select aria-label="Model" value={model.value} onChange={(event) => chooseModel(event.currentTarget.value)}>
          {chatModels.value.map(({ id, welte }) => (
            <option key={id} value={id}>
              {welte?.loaded === false ? `${id} (not loaded)` : id}
            </option>
          ))}
        </select>
      )}
      <IconButton icon="models" label="Models" onClick={() => (dialog.value = "models")} />
      <h1 class="hidden">{chat.value?.title ?? "New conversation"}</h1>
    </header>
  );
}

function chooseModel(id: string): void {
  setModel(id);
  setPreferences({ model: id });
}

/** The messages. The view stays at the end while the reader is there. */
function Conversation() {
  const view = useRef<HTMLElement>(null);
  const atEnd = useRef(true);
  const lastTop = useRef(0);
  const [away, setAway] = useState(false);
  const list = path.value;
  const id = route.value.chat;

  const toEnd = () => {
    const element = view.current;
    if (element) element.scrollTop = element.scrollHeight;
  };

  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = view.current!;
    // Text may arrive before the event of its scrolling, so only a reader who scrolls up leaves the end.
    const up = scrollTop < lastTop.current;
    lastTop.current = scrollTop;
    if (scrollHeight - scrollTop - clientHeight < 60) atEnd.current = true;
    else if (up) atEnd.current = false;
    setAway(!atEnd.current);
  };

  useEffect(() => {
    atEnd.current = true;
    toEnd();
  }, [id, ready.value]);

  // A sent message or a new version is shown from its end.
  const streams = streaming.value?.id;
  useEffect(() => {
    if (!streams) return;
    atEnd.current = true;
    toEnd();
  }, [streams]);

  useEffect(() => {
    // The content grows by streaming, the view by the keyboard of a phone.
    const follow = new ResizeObserver(() => {
      if (atEnd.current) toEnd();
    });
    const element = view.current!;
    follow.observe(element);
    follow.observe(element.firstElementChild!);
    return () => follow.disconnect();
  }, []);

  return (
    <main ref={view} onScroll={onScroll} tabIndex={-1} aria-label="Conversation">
      <div class="messages">
        {list.length === 0 && ready.value && <Start />}
        {list.map((message, i) => (
          <MessageView key={message.id} message={message} last={i === list.length - 1} />
        ))}
        {modelsProblem.value && list.length === 0 && <ServerProblem />}
      </div>
      {away && (
        <div class="to-end">
          <IconButton icon="down" label="Go to the end" onClick={toEnd} />
        </div>
      )}
    </main>
  );
}

function ServerProblem() {
  const problem = modelsProblem.value!;
  return (
    <div class="problem" role="alert">
      <p>{problem.title}</p>
      {problem.detail && <p class="soft">{problem.detail}</p>}
      {problem.kind === "key" ? (
        <KeyForm onSaved={() => {}} />
      ) : (
        <button type="button" onClick={() => void refreshModels()}>
          Try again
        </button>
      )}
    </div>
  );
}

function focusMessage(event?: Event): void {
  event?.preventDefault();
  document.getElementById("message")?.focus();
}

function onKeyDown(event: KeyboardEvent): void {
  if (document.querySelector("dialog[open]")) return;
  const command = event.ctrlKey || event.metaKey;
  const target = event.target as HTMLElement;
  const typing = target.matches("input, textarea, select");
  const run = shortcut(event, command, typing, target);
  if (!run) return;
  event.preventDefault();
  run();
}

function shortcut(event: KeyboardEvent, command: boolean, typing: boolean, target: HTMLElement): (() => void) | undefined {
  const key = event.key.toLowerCase();
  if (command && event.shiftKey && key === "o") return newChat;
  if (command && !event.shiftKey && key === "k") return focusSearch;
  if (command && !event.shiftKey && key === "b") return () => showSidebar(!sidebar.value);
  if (command && key === ",") return () => (dialog.value = "settings");
  // With Alt, `key` is a special letter on some systems.
  if (event.altKey && event.code === "KeyC") return copyLast;
  if (event.altKey && event.code === "KeyR") return againLast;
  if (command || event.altKey) return undefined;
  if (key === "escape" && streaming.value) return stop;
  if (key === "escape" && sidebar.value && NARROW.matches) return () => showSidebar(false);
  if (key === "arrowup" && target.id === "message" && (target as HTMLTextAreaElement).value === "") return editLast;
  if (typing) return undefined;
  if (key === "/") return focusMessage;
  if (key === "?") return () => (dialog.value = "shortcuts");
  return undefined;
}

function focusSearch(): void {
  showSidebar(true);
  afterRender(() => document.getElementById("search")?.focus());
}

function copyLast(): void {
  const last = path.value.findLast((message) => message.role === "assistant");
  document.querySelector<HTMLButtonElement>(`#message-${last?.id} .actions button`)?.click();
}

function againLast(): void {
  const last = path.value.at(-1);
  if (last?.role === "assistant" && !streaming.value) regenerate(last);
}

function editLast(): void {
  const last = path.value.findLast((message) => message.role === "user");
  if (last && !streaming.value) edited.value = last.id;
}

// The title of the tab shows where the reader is, and that an answer is on its way.
effect(() => {
  const name = route.value.page === "engine" ? "Engine" : chat.value?.title;
  const busy = answers.value.size > 0 ? "… " : "";
  document.title = `${busy}${name ? `${name} · ` : ""}Welte`;
});
