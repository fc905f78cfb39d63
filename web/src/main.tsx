// Starts the dashboard: signs in, then shows the page that the address names.
import { render } from "preact";
import { ApiError, loadMe, me, signIn, signInProblem } from "./api";
import { App } from "./shell";

async function begin(): Promise<void> {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  // The code works once, and must not stay in the address or the history.
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  try {
    if (code) await signIn({ code });
    else await loadMe();
  } catch (error) {
    if (error instanceof ApiError) signInProblem.value = error;
    if (me.value === undefined) me.value = null;
    if (code) await loadMe().catch(() => undefined);
  }
}

addEventListener("hashchange", () => void begin());
const host = document.getElementById("app");
if (host) render(<App />, host);
void begin();
