/** The settings of a conversation. An absent number or an empty text leaves the choice to the server. */
export interface Options {
  system: string;
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  repeat_penalty?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  seed?: number;
  max_tokens?: number;
  /** One stop string per line. */
  stop: string;
  thinking: "default" | "on" | "off";
  json: boolean;
  /** A JSON schema for JSON mode, as text. */
  schema: string;
  /** The model may ask for calls of the server's tools. */
  tools: boolean;
}

export const NO_OPTIONS: Options = { system: "", stop: "", thinking: "default", json: false, schema: "", tools: false };

export interface NumberField {
  name:
    | "temperature"
    | "top_p"
    | "top_k"
    | "min_p"
    | "repeat_penalty"
    | "presence_penalty"
    | "frequency_penalty"
    | "seed"
    | "max_tokens";
  label: string;
  hint: string;
  min: number;
  max?: number;
  step: number;
}

/** Every numeric setting: its place in the request, its label and its range. */
export const NUMBER_FIELDS: NumberField[] = [
  { name: "temperature", label: "Temperature", hint: "0 always takes the likeliest token", min: 0, max: 5, step: 0.05 },
  { name: "top_p", label: "Top p", hint: "Keep the likeliest tokens up to this probability", min: 0, max: 1, step: 0.01 },
  { name: "top_k", label: "Top k", hint: "Keep this many tokens; 0 keeps all", min: 0, step: 1 },
  { name: "min_p", label: "Min p", hint: "Drop tokens below this share of the likeliest", min: 0, max: 1, step: 0.01 },
  { name: "repeat_penalty", label: "Repeat penalty", hint: "1 is none", min: 0, max: 5, step: 0.05 },
  { name: "presence_penalty", label: "Presence penalty", hint: "0 is none", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", hint: "0 is none", min: -2, max: 2, step: 0.1 },
  { name: "seed", label: "Seed", hint: "The same seed gives the same answer", min: 0, step: 1 },
  { name: "max_tokens", label: "Longest answer", hint: "In tokens", min: 1, step: 1 },
];

/** The request fields of the options: only those that the user set. Throws if the schema is not JSON. */
export function requestFields(options: Options): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  for (const { name } of NUMBER_FIELDS) {
    if (options[name] !== undefined) fields[name] = options[name];
  }
  const stop = options.stop.split("\n").filter((line) => line !== "");
  if (stop.length > 0) fields.stop = stop;
  if (options.thinking !== "default") fields.chat_template_kwargs = { enable_thinking: options.thinking === "on" };
  if (options.json) {
    fields.response_format =
      options.schema.trim() === ""
        ? { type: "json_object" }
        : { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(options.schema), strict: true } };
  }
  return fields;
}
