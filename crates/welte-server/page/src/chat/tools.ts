import { signal } from "@preact/signals";
import { callTool, fetchTools, fetchToolServers } from "../api/client";
import { RequestError } from "../api/problem";
import type { ToolCall } from "../api/types";
import { announce } from "../announce";
import type { Answer } from "./answer";
import type { Call } from "./tree";

/** The labels of the servers whose tools a conversation may use. */
export const toolServers = signal<string[]>([]);

export async function refreshToolServers(): Promise<void> {
  try {
    toolServers.value = await fetchToolServers();
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    toolServers.value = [];
  }
}

/** A tool, and where it is. */
interface Offered {
  server: string;
  tool: string;
  description?: string | null;
  parameters: unknown;
}

/** The tools of all servers, by the names under which the model knows them. */
export type Offer = ReadonlyMap<string, Offered>;

/** Asks all servers for their tools. */
export async function offeredTools(signal: AbortSignal): Promise<Offer> {
  const lists = toolServers.value.map(async (server) =>
    (await fetchTools(server, signal)).map(({ name, ...rest }) => ({ server, tool: name, ...rest })),
  );
  const offer = new Map<string, Offered>();
  for (const offered of (await Promise.all(lists)).flat()) {
    // Tools of different servers may have the same name.
    let name = offered.tool;
    for (let nth = 1; offer.has(name); nth += 1) name = `${offered.server}__${offered.tool}${nth > 1 ? `_${nth}` : ""}`;
    offer.set(name, offered);
  }
  return offer;
}

/** The fields of a request that offer tools. */
export function toolFields(offer: Offer): { tools?: unknown[] } {
  const tools = [...offer].map(([name, { description, parameters }]) => ({
    type: "function",
    function: { name, ...(description && { description }), parameters },
  }));
  return tools.length > 0 ? { tools } : {};
}

/** The calls that the model asks for. */
export function asked(calls: ToolCall[], offer: Offer): Call[] {
  return calls.map(({ id, name, arguments: text }) => {
    const offered = offer.get(name);
    if (!offered) throw new RequestError({ kind: "failed", title: "The model called a tool that does not exist.", detail: name });
    return { id, name, server: offered.server, tool: offered.tool, arguments: text, state: "asked" };
  });
}

/** Makes the calls that the reader agrees to. Returns when all are answered. */
export async function runCalls(calls: Call[], answer: Answer): Promise<void> {
  const { signal } = answer.controller;
  const run = async (call: Call) => {
    announce(`The model asks to call ${call.tool} of ${call.server}.`);
    if (!(await answer.decision(call))) return answer.change(call, { state: "declined" });
    answer.change(call, { state: "running" });
    const { output, error } = await callTool({ server: call.server, name: call.tool, arguments: call.arguments }, signal);
    answer.change(call, error == null ? { state: "done", output: output ?? "" } : { state: "failed", output: error });
  };
  await Promise.all(calls.map(run));
}
