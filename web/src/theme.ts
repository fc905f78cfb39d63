// Dark or light: as the system says, unless the person chose one.
import { effect, signal } from "@preact/signals";

const KEY = "penstock-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const stored = localStorage.getItem(KEY);

export const isDark = signal(stored ? stored === "dark" : system.matches);

system.addEventListener("change", (event) => {
  if (!localStorage.getItem(KEY)) isDark.value = event.matches;
});

export function toggleTheme(): void {
  isDark.value = !isDark.value;
  localStorage.setItem(KEY, isDark.value ? "dark" : "light");
}

effect(() => {
  document.documentElement.dataset["theme"] = isDark.value ? "dark" : "light";
});
