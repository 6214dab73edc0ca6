import { Dialog } from "../controls";

const APPLE = /Mac|iPhone|iPad/.test(navigator.platform);
const COMMAND = APPLE ? "⌘" : "Ctrl";
const ALT = APPLE ? "⌥" : "Alt";

const SHORTCUTS: [string[], string][] = [
  [["Enter"], "Send the message"],
  [["Shift", "Enter"], "New line"],
  [["Esc"], "Stop the answer"],
  [["↑"], "Edit the last message, from an empty message field"],
  [["/"], "Go to the message field"],
  [[COMMAND, "Shift", "O"], "New conversation"],
  [[COMMAND, "K"], "Search conversations"],
  [[COMMAND, "B"], "Show or hide conversations"],
  [[ALT, "C"], "Copy the last answer"],
  [[ALT, "R"], "Answer again"],
  [[COMMAND, ","], "Settings"],
  [["?"], "This list"],
];

export function ShortcutsDialog({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, meaning]) => (
          <div key={meaning}>
            <dt>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
