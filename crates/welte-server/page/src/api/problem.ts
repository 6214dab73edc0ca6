/** Why a request failed, in words. */
export interface Problem {
  kind: "unreachable" | "key" | "busy" | "refused" | "failed" | "broken";
  /** One sentence of the page. */
  title: string;
  /** The server's message. */
  detail?: string;
  /** Seconds to wait before the next try. */
  wait?: number;
}

export class RequestError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.title);
  }
}

export const UNREACHABLE: Problem = {
  kind: "unreachable",
  title: "The server cannot be reached. Check that it is still running.",
};

export const BROKEN: Problem = {
  kind: "broken",
  title: "The connection closed before the answer was complete.",
};

/** The problem of a response that is not 2xx. */
export async function problemOf(response: Response): Promise<Problem> {
  const detail = messageOf(await response.text().catch(() => ""));
  const status = response.status;
  if (status === 401 || status === 403) {
    return { kind: "key", title: "The server asks for an API key.", detail };
  }
  if (status === 429 || status === 503) {
    const after = Number(response.headers.get("retry-after"));
    const wait = Number.isFinite(after) && after > 0 ? Math.ceil(after) : undefined;
    return { kind: "busy", title: "The server is busy.", detail, wait };
  }
  if (status >= 500) return { kind: "failed", title: `The server failed (status ${status}).`, detail };
  return { kind: "refused", title: `The server refused the request (status ${status}).`, detail };
}

/** The message in the body of an error, or the body itself if it is short text. */
function messageOf(body: string): string | undefined {
  try {
    const error: unknown = JSON.parse(body)?.error;
    // Ollama's endpoints have the message itself there.
    const message = typeof error === "string" ? error : (error as { message?: unknown } | undefined)?.message;
    if (typeof message === "string") return message;
  } catch {
    // The body is not JSON: a proxy answered.
  }
  const text = body.trim();
  return text !== "" && text.length <= 300 && !text.startsWith("<") ? text : undefined;
}
