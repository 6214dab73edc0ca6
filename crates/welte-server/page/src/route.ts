import { effect, signal } from "@preact/signals";

export interface Route {
  page: "chat" | "engine";
  /** The open conversation, from the fragment; "" is a new one. */
  chat: string;
}

function read(): Route {
  return {
    page: location.pathname.endsWith("/engine") ? "engine" : "chat",
    chat: location.hash.slice(1),
  };
}

export const route = signal<Route>(read());

/** The conversation that was open last, to return to from the engine page. */
export const lastChat = signal("");

effect(() => {
  if (route.value.page === "chat") lastChat.value = route.value.chat;
});

addEventListener("popstate", () => (route.value = read()));

/** The address of a page, relative to the folder that the page lives in. */
export function address(to: Route): string {
  return to.page === "engine" ? "./engine" : to.chat === "" ? "./" : `./#${to.chat}`;
}

export function go(to: Route, replace = false): void {
  if (replace) history.replaceState(null, "", address(to));
  else history.pushState(null, "", address(to));
  route.value = read();
}

/** Click handler of links: plain clicks stay in the page, so that a streaming answer goes on. */
export function follow(to: Route): (event: MouseEvent) => void {
  return (event) => {
    if (event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(to);
  };
}
