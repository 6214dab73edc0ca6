import { wav } from "./wav";

/** What models of speech read, in samples per second. */
const RATE = 16000;
/** A recording ends by itself after this: the server takes sounds of at most 20 MiB. */
const LONGEST_MS = 10 * 60 * 1000;

/** Sound that is being recorded. */
export interface Recording {
  /** The whole of it as a WAV file, once somebody calls `stop` or the longest time is over. Undefined after `cancel`. */
  file: Promise<File | undefined>;
  stop: () => void;
  cancel: () => void;
}

/** Browsers record only on pages from this machine or over HTTPS. */
export function canRecord(): boolean {
  return typeof MediaRecorder !== "undefined" && navigator.mediaDevices?.getUserMedia !== undefined;
}

/** Begins to record. The browser may ask the user first. */
export async function record(): Promise<Recording> {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const parts: Blob[] = [];
  let wanted = true;
  const stop = () => {
    if (recorder.state !== "inactive") recorder.stop();
  };
  const timer = setTimeout(stop, LONGEST_MS);
  recorder.ondataavailable = (event) => parts.push(event.data);
  const ended = new Promise<void>((resolve) => {
    recorder.onstop = () => resolve();
  });
  const file = ended.then(async () => {
    clearTimeout(timer);
    for (const track of stream.getTracks()) track.stop();
    return wanted ? asWav(new Blob(parts)) : undefined;
  });
  recorder.start();
  const cancel = () => {
    wanted = false;
    stop();
  };
  return { file, stop, cancel };
}

/** The browser's own format is mostly Opus, which the server does not take. */
async function asWav(recorded: Blob): Promise<File> {
  const context = new OfflineAudioContext(1, 1, RATE);
  const sound = await context.decodeAudioData(await recorded.arrayBuffer());
  const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
  const time = new Date().toTimeString().slice(0, 8).replaceAll(":", "-");
  return new File([wav(channels, RATE)], `recording-${time}.wav`, { type: "audio/wav" });
}
