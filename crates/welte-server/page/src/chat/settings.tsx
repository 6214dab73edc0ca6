import { useRef, useState } from "preact/hooks";
import { showToast } from "../announce";
import { Dialog, download } from "../controls";
import { preferences, setPreferences } from "../preferences";
import { refreshModels } from "./models";
import { NO_OPTIONS, NUMBER_FIELDS, type NumberField, type Options } from "./options";
import { exportAll, importAll, options, setOptions } from "./store";

export function SettingsDialog({ onClose }: { onClose: () => void }) {
  const [key, setKey] = useState(preferences.value.apiKey);
  const close = () => {
    if (key.trim() !== preferences.value.apiKey) {
      setPreferences({ apiKey: key.trim() });
      void refreshModels();
    }
    onClose();
  };
  return (
    <Dialog title="Settings" onClose={close}>
      <section aria-labelledby="settings-chat">
        <h3 id="settings-chat">This conversation</h3>
        <ChatSettings />
      </section>
      <section aria-labelledby="settings-page">
        <h3 id="settings-page">This page</h3>
        <div class="fields">
          <label>
            <span>Theme</span>
            <select
              value={preferences.value.theme}
              onChange={(event) => setPreferences({ theme: event.currentTarget.value as "system" })}
            >
              <option value="system">Like the system</option>
              <option value="light">Light</option>
              <option value="dark">Dark</option>
            </select>
          </label>
          <label>
            <span>API key</span>
            <input
              type="password"
              autocomplete="off"
              placeholder="None"
              value={key}
              onInput={(event) => setKey(event.currentTarget.value)}
            />
          </label>
        </div>
        <Backup />
        <p class="soft">
          <a href="./licenses.md" target="_blank">
            Licences of the libraries in this page
          </a>
        </p>
      </section>
    </Dialog>
  );
}

function ChatSettings() {
  const value = options.value;
  const set = <K extends keyof Options>(name: K, next: Options[K]) => setOptions({ [name]: next });
  return (
    <>
      <label class="wide">
        <span>System prompt</span>
        <textarea
          rows={3}
          value={value.system}
          placeholder="None"
          onInput={(event) => set("system", event.currentTarget.value)}
        />
      </label>
      <div class="fields">
        {NUMBER_FIELDS.map((field) => (
          <NumberSetting key={field.name} field={field} />
        ))}
        <label title="Asks models that can think to do so, or not to">
          <span>Thinking</span>
          <select
            value={value.thinking}
            onChange={(event) => set("thinking", event.currentTarget.value as Options["thinking"])}
          >
            <option value="default">Default</option>
            <option value="on">On</option>
            <option value="off">Off</option>
          </select>
        </label>
      </div>
      <label class="wide">
        <span>Stop strings, one per line</span>
        <textarea
          rows={2}
          value={value.stop}
          placeholder="None"
          onInput={(event) => set("stop", event.currentTarget.value)}
        />
      </label>
      <label class="check">
        <input type="checkbox" checked={value.json} onChange={(event) => set("json", event.currentTarget.checked)} />
        <span>JSON mode: the answer is valid JSON</span>
      </label>
      {value.json && <Schema />}
      <div class="row">
        <button type="button" onClick={() => setOptions({ ...emptyNumbers(), ...NO_OPTIONS })}>
          Reset
        </button>
        <button
          type="button"
          onClick={() => {
            setPreferences({ defaults: value });
            showToast("New conversations begin with these settings.");
          }}
        >
          Use for new conversations
        </button>
      </div>
    </>
  );
}

function emptyNumbers(): Partial<Options> {
  return Object.fromEntries(NUMBER_FIELDS.map(({ name }) => [name, undefined]));
}

function NumberSetting({ field }: { field: NumberField }) {
  const { name, label, hint, min, max, step } = field;
  const stored = options.value[name];
  const [text, setText] = useState(stored === undefined ? "" : String(stored));
  // After a reset the stored value differs from the text.
  const shown = text !== "" && stored === undefined && valid(text, field) ? "" : text;
  return (
    <label title={hint}>
      <span>{label}</span>
      <input
        type="number"
        inputMode="decimal"
        placeholder="Default"
        min={min}
        max={max}
        step={step}
        value={shown}
        aria-invalid={shown !== "" && !valid(shown, field)}
        onInput={(event) => {
          const next = event.currentTarget.value;
          setText(next);
          setOptions({ [name]: valid(next, field) ? Number(next) : undefined });
        }}
      />
    </label>
  );
}

function valid(text: string, { min, max = Infinity, step }: NumberField): boolean {
  const value = Number(text);
  return text.trim() !== "" && value >= min && value <= max && (step < 1 || Number.isInteger(value));
}

function Schema() {
  const { schema } = options.value;
  let problem = "";
  try {
    if (schema.trim() !== "") JSON.parse(schema);
  } catch (error) {
    problem = (error as Error).message;
  }
  return (
    <label class="wide">
      <span>JSON schema</span>
      <textarea
        class="mono"
        rows={5}
        spellcheck={false}
        value={schema}
        placeholder="Any JSON object"
        aria-invalid={problem !== ""}
        onInput={(event) => setOptions({ schema: event.currentTarget.value })}
      />
      {problem && <span class="error">{problem}</span>}
    </label>
  );
}

function Backup() {
  const picker = useRef<HTMLInputElement>(null);
  const restore = async (file: File | undefined) => {
    if (!file) return;
    try {
      const added = importAll(JSON.parse(await file.text()));
      showToast(added === 1 ? "1 conversation restored." : `${added} conversations restored.`);
    } catch (error) {
      showToast(`The backup cannot be read: ${(error as Error).message}`);
    }
  };
  return (
    <div class="row">
      <button
        type="button"
        onClick={async () => download("welte-conversations.json", JSON.stringify(await exportAll()), "application/json")}
      >
        Save all conversations to a file
      </button>
      <button type="button" onClick={() => picker.current?.click()}>
        Restore from a file
      </button>
      <input
        ref={picker}
        type="file"
        accept="application/json"
        hidden
        onChange={(event) => {
          void restore(event.currentTarget.files?.[0]);
          event.currentTarget.value = "";
        }}
      />
    </div>
  );
}
