/** Cuts a stream of server-sent events into the data of its events, wherever the network cuts the text. */
export class EventReader {
  private rest = "";
  private data: string[] = [];
  private afterReturn = false;

  /** Takes the next piece of text and returns the data of all events that it completes. */
  push(text: string): string[] {
    const events: string[] = [];
    // A line break of two characters may be cut in the middle.
    if (this.afterReturn && text.startsWith("\n")) {
      text = text.slice(1);
      this.afterReturn = false;
    }
    if (text !== "") this.afterReturn = text.endsWith("\r");
    const lines = (this.rest + text).split(/\r\n|\n|\r/);
    this.rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        if (this.data.length > 0) events.push(this.data.join("\n"));
        this.data = [];
      } else if (line.startsWith("data:")) {
        this.data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
    return events;
  }
}
