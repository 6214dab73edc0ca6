import { computed, signal } from "@preact/signals";
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
  const known = (id: string) => chatModels.value.some((model) => model.id === id);
  if (chosen !== "" && (known(chosen) || models.value.length === 0)) return chosen;
  const { model } = preferences.value;
  return known(model) ? model : (chatModels.value[0]?.id ?? "");
}

/** The models that answer in chats: all but those that only write down speech. */
export const chatModels = computed(() => models.value.filter(({ welte }) => !welte?.speech));

/** The model that writes down speech beside the others, if there is one. */
export const speechModel = computed(() => models.value.find(({ welte }) => welte?.speech)?.id);

/** Whether a model takes sounds. Of models that are not loaded this is not known. */
export function hears(id: string): boolean {
  return models.value.find((model) => model.id === id)?.welte?.audio === true;
}

export function contextOf(id: string): number | undefined {
  return models.value.find((model) => model.id === id)?.welte?.context ?? undefined;
}
