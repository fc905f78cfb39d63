// The one policy of Trusted Types: the address of our own worker, and text for frames that can run nothing.
import { base } from "./router";

interface Rules {
  createScriptURL: (text: string) => string;
  createHTML: (text: string) => string;
}

const rules: Rules = { createScriptURL: (text) => text, createHTML: (text) => text };
const types = (window as { trustedTypes?: { createPolicy: (name: string, rules: Rules) => Rules } }).trustedTypes;
const policy = types?.createPolicy("penstock", rules) ?? rules;

/** The address of the script that lays graphs out. */
export function layoutWorker(): string {
  const file = document.querySelector<HTMLMetaElement>('meta[name="penstock-layout"]')?.content ?? "";
  return policy.createScriptURL(new URL(file, base).href);
}

/** HTML for a frame with `sandbox=""`, and for nothing else. */
export const trustedPage = (html: string): string => policy.createHTML(html);
