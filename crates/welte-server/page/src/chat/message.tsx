import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { announce } from "../announce";
import { afterRender, CopyButton, IconButton } from "../controls";
import { bytes, duration } from "../format";
import { Icon } from "../icons";
import { CodeBlock } from "../markdown/code";
import { Markdown } from "../markdown/markdown";
import type { Answer } from "./answer";
import { CallView } from "./call";
import { indentJson } from "./json";
import { ProblemNote } from "./problem";
import { AnswerStats, LiveStats } from "./stats";
import { answerAgain, answers, choose, edit, regenerate, removeMessage, streaming, versions } from "./store";
import type { Message } from "./tree";

/** The id of the message that is being edited, or "". */
export const edited = signal("");

export function MessageView({ message, last }: { message: Message; last: boolean }) {
  const editing = edited.value === message.id;
  const answer = answers.value.get(message.id);
  const person = message.role === "user";
  return (
    <article
      id={`message-${message.id}`}
      class={`message ${message.role}`}
      aria-label={person ? "You" : (message.model ?? "Answer")}
      aria-busy={answer !== undefined}
    >
      {editing ? (
        <Editor message={message} />
      ) : person ? (
        <UserText message={message} />
      ) : (
        <AnswerText message={message} answer={answer} />
      )}
      {!editing && !answer && (
        <footer>
          <Versions message={message} />
          <Actions message={message} />
          {!person && <AnswerStats message={message} />}
        </footer>
      )}
      {last && person && !streaming.value && (
        <div class="problem">
          <p>This message has no answer.</p>
          <button type="button" onClick={() => answerAgain(message)}>
            Answer it
          </button>
        </div>
      )}
    </article>
  );
}

function UserText({ message }: { message: Message }) {
  return (
    <div class="bubble">
      {message.files?.map((file, i) =>
        file.image ? (
          <a key={i} class="picture" href={file.image} download={file.name}>
            <img src={file.image} alt={file.name} />
          </a>
        ) : file.audio ? (
          <audio key={i} controls preload="metadata" src={file.audio} aria-label={file.name} />
        ) : (
        <details key={i} class="file">
          <summary>
            <Icon name="file" />
            <span class="name">{file.name}</span>
            <span class="soft">{bytes(file.text.length)}</span>
          </summary>
          <pre tabIndex={0}>{file.text}</pre>
        </details>
        ),
      )}
      {message.text !== "" && <p class="plain">{message.text}</p>}
    </div>
  );
}

/** An answer, while it streams and afterwards. */
function AnswerText({ message, answer }: { message: Message; answer: Answer | undefined }) {
  const streamed = useRef(false);
  const open = answer !== undefined;
  const text = answer ? answer.text.value : message.text;
  const thinking = answer ? answer.thinking.value : (message.thinking ?? "");
  const rounds = (answer ? answer.rounds.value : message.rounds) ?? [];
  const isAsking = rounds.at(-1)?.calls?.some(({ state }) => state === "asked");
  // Screen readers hear an answer that streams, but not an old one that is shown again.
  if (open) streamed.current = true;
  useEffect(() => {
    if (streamed.current && !open) announce(endOf(message));
  }, [open]);
  return (
    <>
      {rounds.map((round, i) => (
        <div key={i} class="round">
          {round.thinking && <Thinking text={round.thinking} active={false} ms={round.thinkingMs} />}
          <Markdown text={round.text} open={false} />
          {round.calls?.map((call) => <CallView key={call.id} call={call} answer={answer} />)}
        </div>
      ))}
      {thinking !== "" && <Thinking text={thinking} active={open && text === ""} ms={message.thinkingMs} />}
      {message.json ? (
        <JsonText text={text} open={open} />
      ) : (
        <Markdown text={text} open={open} onClosed={streamed.current ? announce : undefined} />
      )}
      {answer && !isAsking && <LiveStats answer={answer} />}
      {message.problem && <ProblemNote message={message} problem={message.problem} />}
    </>
  );
}

function endOf(message: Message): string {
  if (message.state === "done") return "The answer is complete.";
  if (message.state === "stopped") return "The answer was stopped.";
  return `The answer failed. ${message.problem?.title ?? ""}`;
}

function JsonText({ text, open }: { text: string; open: boolean }) {
  const indented = open ? text : indentJson(text);
  if (text === "") return null;
  return (
    <>
      <CodeBlock text={indented ?? text} language="json" />
      {indented === undefined && <p class="stats notice">This is not complete JSON.</p>}
    </>
  );
}

/** The model's thinking, folded away. */
function Thinking({ text, active, ms }: { text: string; active: boolean; ms?: number }) {
  const title = active ? "Thinking" : ms ? `Thought for ${duration(ms)}` : "Thought";
  return (
    <details class={`thinking ${active ? "active" : ""}`}>
      <summary>{title}</summary>
      <div class="plain">{text.trim()}</div>
    </details>
  );
}

function Versions({ message }: { message: Message }) {
  const list = versions.value.get(message.parent) ?? [];
  if (list.length < 2) return null;
  const at = list.findIndex((other) => other.id === message.id);
  const show = (index: number) => {
    const other = list[index]!;
    choose(other);
    announce(`Version ${index + 1} of ${list.length}.`);
    // The message is replaced: the focus moves to the same button of the other version.
    afterRender(() => {
      const buttons = document.querySelectorAll<HTMLButtonElement>(`#message-${other.id} .versions button`);
      const button = index < at ? buttons[0] : buttons[1];
      (button?.disabled ? buttons[index < at ? 1 : 0] : button)?.focus();
    });
  };
  return (
    <span class="versions" role="group" aria-label="Versions">
      <IconButton icon="left" label="Previous version" disabled={at === 0} onClick={() => show(at - 1)} />
      <span aria-label={`Version ${at + 1} of ${list.length}`}>
        {at + 1}/{list.length}
      </span>
      <IconButton icon="right" label="Next version" disabled={at === list.length - 1} onClick={() => show(at + 1)} />
    </span>
  );
}

function Actions({ message }: { message: Message }) {
  const busy = streaming.value !== undefined;
  const answer = message.role === "assistant";
  return (
    <span class="actions">
      {message.text !== "" && <CopyButton text={() => message.text} label="Copy message" />}
      {(!answer || message.text !== "") && (
        <IconButton icon="edit" label="Edit message" disabled={busy} onClick={() => (edited.value = message.id)} />
      )}
      {answer && (
        <IconButton icon="again" label="Answer again" disabled={busy} onClick={() => regenerate(message)} />
      )}
      <IconButton icon="trash" label="Delete message" disabled={busy} onClick={() => removeMessage(message)} />
    </span>
  );
}

function Editor({ message }: { message: Message }) {
  const [text, setText] = useState(message.text);
  const area = useRef<HTMLTextAreaElement>(null);
  // Before the page is painted: later it would move the cursor of somebody who types at once.
  useLayoutEffect(() => {
    area.current?.focus();
    area.current?.setSelectionRange(text.length, text.length);
  }, []);
  const done = () => {
    edited.value = "";
    document.getElementById("message")?.focus();
  };
  const save = () => {
    if (text.trim() === "") return;
    done();
    edit(message, text.trim());
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      done();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      save();
    }
  };
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        save();
      }}
    >
      <textarea
        ref={area}
        aria-label="Edit message"
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <div class="row">
        <button type="button" onClick={done}>
          Cancel
        </button>
        <button type="submit" class="primary" disabled={text.trim() === ""}>
          {message.role === "user" ? "Send" : "Save"}
        </button>
      </div>
    </form>
  );
}
