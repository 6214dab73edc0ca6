import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { download, IconButton } from "../controls";
import { Icon, Logo } from "../icons";
import { preferences, setPreferences } from "../preferences";
import { address, follow, route } from "../route";
import { answers, chats, exportChat, newChat, persistent, ready, removeChat, rename, search } from "./store";
import { type Chat, fileName } from "./tree";

interface Props {
  open: boolean;
  onClose: () => void;
  onSettings: () => void;
  onShortcuts: () => void;
}

const THEMES = {
  system: { next: "light", icon: "screen", label: "Theme: like the system" },
  light: { next: "dark", icon: "sun", label: "Theme: light" },
  dark: { next: "system", icon: "moon", label: "Theme: dark" },
} as const;

export function Sidebar({ open, onClose, onSettings, onShortcuts }: Props) {
  const [query, setQuery] = useState("");
  const found = useSearch(query);
  const theme = THEMES[preferences.value.theme];
  const list = chats.value.filter((c) => !found || found.has(c.id));
  // On a narrow screen the sidebar covers the page and closes after each choice.
  const leave = () => {
    if (matchMedia("(max-width: 760px)").matches) onClose();
  };
  return (
    <nav class="sidebar" aria-label="Conversations" inert={!open}>
      <header>
        <a href={address({ page: "chat", chat: "" })} class="brand" onClick={follow({ page: "chat", chat: "" })}>
          <Logo />
          <span>Welte</span>
        </a>
        <IconButton icon="menu" label="Hide conversations" onClick={onClose} />
      </header>
      <button
        type="button"
        class="new"
        onClick={() => {
          newChat();
          leave();
        }}
      >
        <Icon name="plus" />
        New conversation
      </button>
      <label class="search">
        <Icon name="search" />
        <input
          id="search"
          type="search"
          placeholder="Search"
          aria-label="Search conversations"
          value={query}
          onInput={(event) => setQuery(event.currentTarget.value)}
        />
      </label>
      <div class="list">
        {groups(list).map(([title, members]) => (
          <section key={title} aria-label={title}>
            <h2>{title}</h2>
            <ul>
              {members.map((c) => (
                <Entry key={c.id} chat={c} onOpen={leave} />
              ))}
            </ul>
          </section>
        ))}
        {ready.value && list.length === 0 && (
          <p class="soft">{query ? "Nothing was found." : "Conversations are kept in this browser."}</p>
        )}
        {!persistent.value && (
          <p class="soft">This browser allows no storage here. Conversations end when the page is closed.</p>
        )}
      </div>
      <footer>
        <a href={address({ page: "engine", chat: "" })} onClick={follow({ page: "engine", chat: "" })}>
          <Icon name="roll" />
          Engine
        </a>
        <span class="space" />
        <IconButton
          icon={theme.icon}
          label={theme.label}
          onClick={() => setPreferences({ theme: theme.next })}
        />
        <IconButton icon="keyboard" label="Keyboard shortcuts" onClick={onShortcuts} />
        <IconButton icon="settings" label="Settings" onClick={onSettings} />
      </footer>
    </nav>
  );
}

/** The conversations that contain a text; undefined while nothing is searched. */
function useSearch(query: string): Set<string> | undefined {
  const [found, setFound] = useState<Set<string>>();
  useEffect(() => {
    if (query.trim() === "") {
      setFound(undefined);
      return;
    }
    let current = true;
    const timer = setTimeout(() => {
      void search(query.trim()).then((result) => current && setFound(result));
    }, 150);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [query]);
  return found;
}

function groups(list: Chat[]): [string, Chat[]][] {
  const today = new Date().setHours(0, 0, 0, 0);
  const day = 86_400_000;
  const ages: [string, number][] = [
    ["Today", today],
    ["Yesterday", today - day],
    ["Last 7 days", today - 7 * day],
    ["Last 30 days", today - 30 * day],
    ["Older", -Infinity],
  ];
  const all = ages.map(([title, since], i): [string, Chat[]] => {
    const before = ages[i - 1]?.[1] ?? Infinity;
    return [title, list.filter((c) => c.updated >= since && c.updated < before)];
  });
  return all.filter(([, members]) => members.length > 0);
}

function Entry({ chat, onOpen }: { chat: Chat; onOpen: () => void }) {
  const [naming, setNaming] = useState(false);
  const here = route.value.page === "chat" && route.value.chat === chat.id;
  const to = { page: "chat", chat: chat.id } as const;
  const busy = [...answers.value.keys()].length > 0 && here;
  if (naming) return <Name chat={chat} onDone={() => setNaming(false)} />;
  return (
    <li class={here ? "here" : ""}>
      <a
        href={address(to)}
        aria-current={here ? "page" : undefined}
        title={chat.title}
        onClick={(event) => {
          follow(to)(event);
          onOpen();
        }}
        onDblClick={() => setNaming(true)}
      >
        {chat.title}
      </a>
      <span class="actions">
        <IconButton icon="edit" label={`Rename ${chat.title}`} onClick={() => setNaming(true)} />
        <IconButton icon="save" label={`Export ${chat.title}`} onClick={() => void save(chat)} />
        <IconButton icon="trash" label={`Delete ${chat.title}`} disabled={busy} onClick={() => void removeChat(chat.id)} />
      </span>
    </li>
  );
}

async function save(chat: Chat): Promise<void> {
  download(`${fileName(chat.title)}.md`, await exportChat(chat), "text/markdown");
}

function Name({ chat, onDone }: { chat: Chat; onDone: () => void }) {
  const field = useRef<HTMLInputElement>(null);
  // Before the page is painted: later it would select what somebody has typed at once.
  useLayoutEffect(() => field.current?.select(), []);
  const save = () => {
    const title = field.current?.value.trim() ?? "";
    if (title !== "" && title !== chat.title) rename(chat.id, title);
    onDone();
  };
  return (
    <li>
      <form
        class="name"
        onSubmit={(event) => {
          event.preventDefault();
          save();
        }}
      >
        <input
          ref={field}
          defaultValue={chat.title}
          aria-label="Title"
          onBlur={save}
          onKeyDown={(event) => {
            if (event.key !== "Escape") return;
            event.stopPropagation();
            onDone();
          }}
        />
      </form>
    </li>
  );
}
