// The payload of a message: JSON, text or bytes, always shown as text. Nothing in it is ever interpreted.
import { useState } from "preact/hooks";
import { ExactNumber } from "../api";
import { bytes as size } from "../format";

const SHOWN_MAX = 200_000; // characters drawn at once: a larger text would freeze the page

type Mode = "json" | "text" | "hex";

export interface PayloadSource {
  payload?: unknown;
  payload_base64?: string;
  content_type?: string;
}

/** Whether the payload is text: a JSON string only because JSON carries it. */
export function isPlainText(of: PayloadSource): of is { payload: string } {
  return of.content_type === "text/plain" && typeof of.payload === "string";
}

export function Payload({ of }: { of: PayloadSource }) {
  const raw = isPlainText(of) ? new TextEncoder().encode(of.payload) : of.payload_base64 === undefined ? null : decode(of.payload_base64);
  const isJson = raw === null;
  const [mode, setMode] = useState<Mode>(isJson ? "json" : isText(raw) ? "text" : "hex");
  const [isWhole, setWhole] = useState(false);
  const content = show(of, raw, mode);
  const shown = isWhole ? content : content.slice(0, SHOWN_MAX);
  const modes: Mode[] = isJson ? ["json", "text", "hex"] : ["text", "hex"];
  return (
    <div class="payload">
      <div class="payload-head">
        <span class="segmented" role="group" aria-label="Show the payload as">
          {modes.map((item) => (
            <button key={item} aria-pressed={item === mode} onClick={() => setMode(item)}>
              {item === "json" ? "JSON" : item === "text" ? "Text" : "Hex"}
            </button>
          ))}
        </span>
        <span class="soft small">{size(raw ? raw.length : new TextEncoder().encode(exactJson(of.payload)).length)}</span>
        <button class="quiet" onClick={() => void navigator.clipboard?.writeText(content)}>
          Copy
        </button>
      </div>
      <pre dir="auto" tabIndex={0} aria-label="Payload">
        {shown}
      </pre>
      {content.length > shown.length ? (
        <button onClick={() => setWhole(true)}>Show all {size(content.length)}</button>
      ) : null}
    </div>
  );
}

function show(of: PayloadSource, raw: Uint8Array | null, mode: Mode): string {
  if (mode === "hex") return hex(raw ?? new TextEncoder().encode(exactJson(of.payload)));
  if (raw) return new TextDecoder().decode(raw); // invalid UTF-8 becomes U+FFFD
  return mode === "json" ? exactJson(of.payload, "  ") : exactJson(of.payload);
}

function decode(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function isText(raw: Uint8Array): boolean {
  try {
    return !/[\0-\x08\x0e-\x1f]/.test(new TextDecoder("utf-8", { fatal: true }).decode(raw));
  } catch {
    return false;
  }
}

/** JSON.stringify that writes numbers beyond 2^53 with all their digits. */
export function exactJson(value: unknown, indent = "", depth = ""): string {
  if (value instanceof ExactNumber) return value.text;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const inner = indent ? depth + indent : "";
  const [open, close] = indent ? [`\n${inner}`, `\n${depth}`] : ["", ""];
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[${open}${value.map((item) => exactJson(item, indent, inner)).join(`,${indent ? open : " "}`)}${close}]`;
  }
  const entries = Object.entries(value);
  if (!entries.length) return "{}";
  const lines = entries.map(([name, item]) => `${JSON.stringify(name)}: ${exactJson(item, indent, inner)}`);
  return `{${open}${lines.join(`,${indent ? open : " "}`)}${close}}`;
}

function hex(raw: Uint8Array): string {
  const lines: string[] = [];
  const end = Math.min(raw.length, SHOWN_MAX / 4);
  for (let start = 0; start < end; start += 16) {
    const part = [...raw.subarray(start, Math.min(start + 16, end))];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${start.toString(16).padStart(8, "0")}  ${digits.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

/** The beginning of a payload, in one line, for tables. */
export function preview(of: PayloadSource, length = 400): string {
  if (isPlainText(of)) return of.payload.slice(0, length);
  if (of.payload_base64 === undefined) return exactJson(of.payload).slice(0, length);
  const raw = decode(of.payload_base64.slice(0, 400));
  return isText(raw) ? new TextDecoder().decode(raw).slice(0, length) : `${hex(raw.subarray(0, 16)).slice(10, 58).trim()} …`;
}
