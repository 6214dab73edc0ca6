import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { showToast } from "../announce";
import { IconButton } from "../controls";
import { bytes } from "../format";
import { Icon } from "../icons";
import { transcribe } from "../api/client";
import { RequestError } from "../api/problem";
import { readFiles } from "./files";
import { hears, speechModel } from "./models";
import { type Recording, canRecord, record } from "./record";
import { toolServers } from "./tools";
import { chat, model, options, send, setOptions, stop, streaming } from "./store";
import type { Attachment } from "./tree";

const DRAFT = "welte.draft.";

/** The text that was typed but not sent, per conversation. It outlives a reload. */
function storedDraft(id: string): string {
  return sessionStorage.getItem(DRAFT + id) ?? "";
}

function storeDraft(id: string, text: string): void {
  if (text === "") sessionStorage.removeItem(DRAFT + id);
  else sessionStorage.setItem(DRAFT + id, text);
}

export function Composer({ onSettings }: { onSettings: () => void }) {
  const id = chat.value?.id ?? "";
  const [text, setText] = useState(() => storedDraft(id));
  const [files, setFiles] = useState<Attachment[]>([]);
  const [dragging, setDragging] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const [recording, setRecording] = useState<Recording>();
  /** What is being written down, or waits for the user's permission. */
  const [waiting, setWaiting] = useState<AbortController>();
  const listens = hears(model.value);
  const busy = streaming.value !== undefined;
  const empty = text.trim() === "" && files.length === 0;

  // Before the page is painted, so that nothing is lost that somebody types or attaches at once.
  useLayoutEffect(() => {
    setText(storedDraft(id));
    setFiles([]);
    // On a phone the keyboard would cover the conversation.
    if (matchMedia("(pointer: fine)").matches) area.current?.focus();
  }, [id]);

  useEffect(() => {
    // Browsers without `field-sizing` need the height of the text.
    const field = area.current;
    if (!field || CSS.supports("field-sizing", "content")) return;
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight}px`;
  }, [text]);

  const change = (value: string) => {
    setText(value);
    storeDraft(id, value);
  };

  const submit = () => {
    if (empty || busy) return;
    send(text.trim(), files);
    storeDraft(id, "");
    setText("");
    setFiles([]);
  };

  const attach = async (list: Iterable<File>) => {
    const { read, problems } = await readFiles(list, hears(model.peek()));
    setFiles((old) => [...old, ...read]);
    if (problems.length > 0) showToast(problems.join(" "));
  };

  // What was said in one conversation does not appear in another.
  useEffect(() => () => recording?.cancel(), [recording, id]);
  useEffect(() => () => waiting?.abort(), [waiting, id]);

  /** Records until the user presses the button again. A model that hears gets the sound, else its text is written into the field. */
  const speak = async () => {
    if (recording) return recording.stop();
    const control = new AbortController();
    setWaiting(control);
    let begun: Recording | undefined;
    try {
      begun = await record();
      if (control.signal.aborted) return begun.cancel();
      setWaiting(undefined);
      setRecording(begun);
      const file = await begun.file;
      setRecording(undefined);
      if (!file) return;
      if (hears(model.peek())) return await attach([file]);
      await writeDown(file);
    } catch (error) {
      setRecording(undefined);
      setWaiting(undefined);
      if (begun || !control.signal.aborted) showToast(`Nothing was recorded: ${(error as Error).message}`);
    }
  };

  const writeDown = async (file: File) => {
    const speech = speechModel.peek();
    if (speech === undefined) return;
    const control = new AbortController();
    setWaiting(control);
    try {
      const said = (await transcribe(file, speech, control.signal)).trim();
      const before = area.current?.value ?? "";
      if (said !== "" && !control.signal.aborted) change(before === "" || /\s$/.test(before) ? before + said : `${before} ${said}`);
      area.current?.focus();
    } catch (error) {
      if (control.signal.aborted) return;
      const why = error instanceof RequestError ? (error.problem.detail ?? error.problem.title) : String(error);
      showToast(`The recording could not be written down: ${why}`);
    } finally {
      setWaiting((now) => (now === control ? undefined : now));
    }
  };

  const onKeyDown = (event: KeyboardEvent) => {
    // While an input method composes a word, Enter chooses the word.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  };

  const onPaste = (event: ClipboardEvent) => {
    const pasted = event.clipboardData?.files;
    if (!pasted || pasted.length === 0) return;
    event.preventDefault();
    void attach(pasted);
  };

  const onDrop = (event: DragEvent) => {
    event.preventDefault();
    setDragging(false);
    if (event.dataTransfer) void attach(event.dataTransfer.files);
  };

  return (
    <form
      class={`composer ${dragging ? "dragging" : ""}`}
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
      onDragOver={(event) => {
        event.preventDefault();
        setDragging(true);
      }}
      onDragLeave={() => setDragging(false)}
      onDrop={onDrop}
    >
      {files.length > 0 && (
        <ul class="files" aria-label="Attached files">
          {files.map((file, i) => (
            <li key={i}>
              {file.image ? <img class="thumbnail" src={file.image} alt="" /> : <Icon name={file.audio ? "microphone" : "file"} />}
              <span class="name">{file.name}</span>
              {!file.image && !file.audio && <span class="soft">{bytes(file.text.length)}</span>}
              <IconButton
                icon="close"
                label={`Remove ${file.name}`}
                onClick={() => setFiles(files.filter((other) => other !== file))}
              />
            </li>
          ))}
        </ul>
      )}
      <textarea
        id="message"
        ref={area}
        rows={1}
        value={text}
        placeholder={model.value ? `Message ${model.value}` : "Message"}
        aria-label="Message"
        enterkeyhint="send"
        onInput={(event) => change(event.currentTarget.value)}
        onKeyDown={onKeyDown}
        onPaste={onPaste}
      />
      <div class="tools">
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          onChange={(event) => {
            void attach([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = "";
          }}
        />
        <IconButton
          icon="attach"
          label={listens ? "Attach text files, images or sounds" : "Attach text files or images"}
          onClick={() => picker.current?.click()}
        />
        {(listens || speechModel.value !== undefined) && canRecord() && (
          <IconButton
            icon={recording ? "stop" : "microphone"}
            label={recording ? "Stop recording" : waiting ? "Writing down" : listens ? "Record a sound" : "Dictate"}
            pressed={recording !== undefined}
            disabled={waiting !== undefined}
            onClick={() => void speak()}
          />
        )}
        <button
          type="button"
          class="toggle"
          aria-pressed={options.value.json}
          title="JSON mode: the answer is valid JSON"
          onClick={() => setOptions({ json: !options.value.json })}
        >
          JSON
        </button>
        {toolServers.value.length > 0 && (
          <button
            type="button"
            class="toggle"
            aria-pressed={options.value.tools === true}
            title={`Tools: the model may ask for calls of ${toolServers.value.join(", ")}; you confirm each`}
            onClick={() => setOptions({ tools: !options.value.tools })}
          >
            Tools
          </button>
        )}
        <IconButton icon="settings" label="Settings of this conversation" onClick={onSettings} />
        <span class="space" />
        {busy ? (
          <IconButton icon="stop" label="Stop" class="primary" onClick={stop} />
        ) : (
          <button type="submit" class="icon-button primary" aria-label="Send" title="Send" disabled={empty}>
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
}
