/** A WAV file of 16 bits in one channel: the mean of all channels. */
export function wav(channels: readonly Float32Array[], rate: number): Uint8Array<ArrayBuffer> {
  const count = channels[0]?.length ?? 0;
  const file = new Uint8Array(44 + 2 * count);
  const view = new DataView(file.buffer);
  const word = (at: number, text: string) => [...text].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  word(0, "RIFF");
  view.setUint32(4, 36 + 2 * count, true);
  word(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  word(36, "data");
  view.setUint32(40, 2 * count, true);
  for (let i = 0; i < count; i += 1) {
    const sum = channels.reduce((all, channel) => all + channel[i]!, 0);
    const value = Math.max(-1, Math.min(1, sum / channels.length));
    view.setInt16(44 + 2 * i, Math.round(value * 32767), true);
  }
  return file;
}
