import { signal } from "@preact/signals";
import { fetchModels } from "../api/client";
import { type Problem, RequestError } from "../api/problem";
import type { ModelEntry } from "../api/types";
import { preferences } from "../preferences";

export const models = signal<ModelEntry[]>([]);
/** Why the list of models could not be read. */
export const modelsProblem = signal<Problem | null>(null);

export async function refreshModels(): Promise<void> {
  try {
    models.value = await fetchModels();
    modelsProblem.value = null;
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    modelsProblem.value = error.problem;
  }
}

/** The model of a conversation: its own if the server still has it, else the preferred one, else the server's first. */
export function modelFor(chosen: string): string {
  const known = (id: string) => models.value.some((model) => model.id === id);
  if (chosen !== "" && (known(chosen) || models.value.length === 0)) return chosen;
  const { model } = preferences.value;
  return known(model) ? model : (models.value[0]?.id ?? "");
}

export function contextOf(id: string): number | undefined {
  return models.value.find((model) => model.id === id)?.welte?.context ?? undefined;
}
